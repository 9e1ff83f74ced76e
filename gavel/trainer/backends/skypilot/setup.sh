set -euo pipefail
gavel_home="$HOME/.gavel"
venv="$gavel_home/venv"
mkdir -p "$gavel_home"
if [ ! -x "$venv/bin/python" ]; then
  if command -v uv >/dev/null 2>&1; then
    uv venv --quiet --seed --python '>=3.11,<3.14' "$venv"
  else
    for python in python3.13 python3.12 python3.11 python3; do
      if "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then
        "$python" -m venv "$venv"
        break
      fi
    done
  fi
fi
if [ ! -x "$venv/bin/python" ]; then
  echo "Gavel needs Python 3.11 to 3.13, and here are neither one nor uv: choose another image." >&2
  exit 1
fi
if [ "$(cat "$gavel_home/installed" 2>/dev/null || true)" != "$gavel_wheel" ]; then
  pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet install)
  "${pip[@]}" --force-reinstall --no-deps "$gavel_wheel"
  "${pip[@]}" "${gavel_wheel}[service,train]"
  printf '%s' "$gavel_wheel" >"$gavel_home/installed"
fi
