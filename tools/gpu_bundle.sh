#!/usr/bin/env bash
# Packs what `make test-gpu` needs on a GPU machine without internet (at most 64 MiB): target/dist, and the wheels of the project's
# dependencies, of theirs, and of pytest, for that machine's Python. There: tools/gpu_test.sh
# Usage: tools/gpu_bundle.sh [PYTHON_VERSION, default 3.12] [FOLDER, default .gpu, which git ignores]
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-3.12} out=${2:-.gpu} cache=target/gpu-wheels/${1:-3.12}
wanted=$(.venv/bin/python -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; print(*project["dependencies"], *project["optional-dependencies"]["offload"], "pytest", "pytest-timeout", sep="\n")')

# Loaded once for one list of requirements; the resolver finds what they need, so that no list of ours can lack a package.
if ! { [ -e "$cache/wanted.txt" ] && [ "$(cat "$cache/wanted.txt")" = "$wanted" ]; }; then
    rm -rf "$cache" && mkdir -p "$cache/wheels"
    printf '%s\n' "$wanted" >"$cache/requirements.txt"
    .venv/bin/python -m pip download --quiet --disable-pip-version-check --only-binary=:all: --python-version "$python" --implementation cp \
        --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
        --dest "$cache/wheels" --requirement "$cache/requirements.txt"
    mv "$cache/requirements.txt" "$cache/wanted.txt"
fi
rm -rf "$out" && mkdir -p "$out"
cp -a "$cache/wheels" "$cache/wanted.txt" "$out/"
cp -a target/dist "$out/dist"
rm -rf "$out/dist/pod" # what is mounted into containers
find "$out/dist" -type f -exec strip --strip-debug {} + 2>/dev/null || true
# Programs and libraries shrink to two fifths; tools/gpu_env.sh unpacks them.
tar -C "$out" -czf "$out/dist.tar.gz" dist && rm -rf "$out/dist"
du -sm "$out" | awk '{ print "==> '"$out"': " $1 " MiB"; exit $1 > 64 }'
