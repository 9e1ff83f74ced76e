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
first="$(printf '%s\n' "${SKYPILOT_NODE_IPS:-127.0.0.1}" | head -n 1)"
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT="${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-3600}"
exec "$python" -m torch.distributed.run \
  --nnodes "$nodes" --node-rank "${SKYPILOT_NODE_RANK:-0}" --nproc-per-node "$processes" \
  --master-addr "$first" --master-port "${GAVEL_MASTER_PORT:-29400}" --max-restarts 0 \
  "$@"
