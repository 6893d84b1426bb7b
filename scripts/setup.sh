#!/bin/sh
# Makes .venv and installs Aril into it, editable: `scripts/setup.sh` to run it, `scripts/setup.sh dev` with all that the
# tests need. Does nothing when pyproject.toml has not changed since. Which torch it takes: README, "Which torch".
set -eu
cd "$(dirname "$0")/.."
want=${1:-run}
stamp=.venv/.ready-$want
mark=$(cksum <pyproject.toml)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$mark" ]; then exit 0; fi

python=${PYTHON:-}
for name in python3.11 python3.12 python3.13 python3; do
    [ -n "$python" ] || ! command -v $name >/dev/null || ! $name -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        python=$name
done
[ -n "$python" ] || { echo "Aril needs Python 3.11 or newer; set PYTHON to one" >&2; exit 1; }
echo "Setting up Aril in .venv, with $($python --version); the first time takes some minutes."
[ -x .venv/bin/python ] || { echo "  making a virtual environment"; "$python" -m venv .venv; }
pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }

torch='torch>=2.11,<2.14'
has_gpu() { [ -e /dev/nvidiactl ] || [ -e /dev/kfd ]; }
if .venv/bin/python -c 'import torch' 2>/dev/null; then
    : # what is installed stays
elif [ -n "${TORCH_INDEX:-}" ]; then
    echo "  installing torch, from TORCH_INDEX"
    pip install -q "$torch" --index-url "$TORCH_INDEX"
else
    echo "  installing torch, the largest piece"
    if ! has_gpu && [ "$(uname -sm)" = "Linux x86_64" ] &&
        ! pip install --dry-run --no-deps "$torch" 2>/dev/null | grep -q '+cpu'; then
        echo "No GPU here, but only torch builds with CUDA (several GB) are offered." >&2
        echo "To take the CPU build, stop now and set TORCH_INDEX to PyTorch's CPU wheel index." >&2
    fi
    pip install -q "$torch"
fi
echo "  installing what else Aril stands on, and compiling its kernels for this processor"
case $want in
dev) pip install -q -e '.[dev]' ;;
*) pip install -q -e . ;;
esac
.venv/bin/python -m compileall -q -x '/\.venv/|/build/' . || true # the first start need not, where it may not write
mkdir -p .venv/src && ln -sfn "$PWD" .venv/src/aril # under its own name, for mypy
echo "$mark" >"$stamp"
