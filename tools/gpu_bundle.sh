#!/usr/bin/env bash
# Packs what `make test-gpu` needs on a GPU machine without internet into .gpu/ (git-ignored, at most 64 MiB): target/dist and the wheels
# for that machine's Python. Usage: tools/gpu_bundle.sh [PYTHON_VERSION, default 3.12]; there: tools/gpu_test.sh
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-3.12}
rm -rf .gpu && mkdir -p .gpu/wheels
cp -a target/dist .gpu/dist
find .gpu/dist -type f -exec strip --strip-debug {} + 2>/dev/null || true
.venv/bin/python -m pip download --quiet --only-binary=:all: --no-deps --python-version "$python" --implementation cp \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    --dest .gpu/wheels grpcio protobuf prometheus-client typer rich click pygments markdown-it-py mdurl shellingham \
    annotated-doc typing-extensions pyyaml nvidia-ml-py cuda-bindings cuda-pathfinder pytest pytest-timeout pluggy iniconfig packaging
du -sm .gpu | awk '{ print "==> .gpu: " $1 " MiB"; exit $1 > 64 }'
