set -euo pipefail
python="${GAVEL_PYTHON:-$HOME/.gavel/venv/bin/python}"
nodes="${SKYPILOT_NUM_NODES:-1}"
gpus="${SKYPILOT_NUM_GPUS_PER_NODE:-0}"
processes="${gpus%%.*}"
if [ "${processes:-0}" -lt 1 ]; then
  processes=1
fi
if [ "$nodes" -eq 1 ] && [ "$processes" -eq 1 ]; then
  exec "$python" "$@"
fi
rank="${SKYPILOT_NODE_RANK:-0}"
addresses="${SKYPILOT_NODE_IPS:-127.0.0.1}"
first="$(printf '%s\n' "$addresses" | head -n 1)"
# gloo asks the host's own name for its address, which on many machines is a loopback's.
if [ -z "${GLOO_SOCKET_IFNAME:-}" ] && command -v ip >/dev/null 2>&1; then
  own="$(printf '%s\n' "$addresses" | sed -n "$((rank + 1))p")"
  interface="$(ip -o -4 addr show | awk -v own="$own" '{ split($4, at, "/"); if (at[1] == own) { print $2; exit } }')"
  if [ -n "$interface" ]; then
    export GLOO_SOCKET_IFNAME="$interface"
  fi
fi
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT="${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-3600}"
exec "$python" -m torch.distributed.run \
  --nnodes "$nodes" --node-rank "$rank" --nproc-per-node "$processes" \
  --master-addr "$first" --master-port "${GAVEL_MASTER_PORT:-29400}" --max-restarts 0 \
  "$@"
