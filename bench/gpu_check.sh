#!/bin/sh
# Checks and measures Aril on a bare machine with an NVIDIA GPU in at most 9 minutes: bench/gpu_check.sh OUT_FOLDER
# Needs Python >= 3.11 with torch, triton, transformers, peft, safetensors and pytest; no network, and Aril need not be
# installed. PYTHON names another interpreter. Results: a table on the terminal, JSON and logs in OUT_FOLDER.
set -eu
[ $# -eq 1 ] || { echo "usage: bench/gpu_check.sh OUT_FOLDER" >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
home=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

ln -s "$home" "$work/aril"
if ! "$python" -c 'import prometheus_client' 2>/dev/null; then
    echo "prometheus_client is not installed: a stand-in takes its place, which keeps no metrics"
    cp "$home/bench/gpu/no_metrics.py" "$work/prometheus_client.py"
fi
export PYTHONPATH="$work:$home/tests${PYTHONPATH:+:$PYTHONPATH}" PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE=1
export TRITON_CACHE_DIR="$work/triton" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
"$python" -m aril.bench.gpu_check "$out"
