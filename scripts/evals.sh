#!/bin/sh
# lm-eval against `aril serve` and against transformers, on the same weights. It has an environment of its own,
# .venv-evals, which sees Aril's torch and transformers; some 500 MB more are installed, so CI does not run this.
set -eu
cd "$(dirname "$0")/.."
list=tests/clients/evals/requirements.txt
stamp=.venv-evals/.ready
mark=$(cksum <"$list")
house=${ARIL_PYTHON:-.venv/bin/python}

if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$mark" ]; then
    [ -x .venv-evals/bin/python ] || "$house" -m venv .venv-evals
    packages='import sysconfig; print(sysconfig.get_path("purelib"))'
    "$house" -c "$packages" >"$(.venv-evals/bin/python -c "$packages")/house.pth"
    echo "Installing lm-eval into .venv-evals; the first time takes some minutes."
    .venv-evals/bin/python -m pip --disable-pip-version-check install -q --no-compile -r "$list"
    echo "$mark" >"$stamp"
fi
exec .venv-evals/bin/python -m pytest tests/clients/evals --confcutdir=tests/clients -p no:cacheprovider \
    --disable-warnings "$@"
