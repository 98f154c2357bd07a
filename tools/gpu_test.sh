#!/usr/bin/env bash
# On a GPU machine: the gpu tests from the bundle that tools/gpu_bundle.sh packed. Ends within ten minutes.
# Usage: tools/gpu_test.sh [PYTEST_OPTION...], or tools/gpu_test.sh frameworks|measure [OPTION...] for tests/gpu/gpu_*.py
set -euo pipefail
cd "$(dirname "$0")/.."
env=${REMOTEGPU_GPU_ENV:-/tmp/remotegpu-venv}
tools/gpu_env.sh "$env"
export REMOTEGPU_DIST="$PWD/.gpu/dist"
if [ "${1:-}" = frameworks ] || [ "${1:-}" = measure ]; then
    PYTHONPATH=tests timeout 570 "$env/bin/python" "tests/gpu/gpu_$1.py" "${@:2}"
else
    timeout 570 "$env/bin/python" -m pytest -m gpu tests/gpu -p no:cacheprovider "$@"
fi
