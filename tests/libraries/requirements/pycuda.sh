#!/usr/bin/env bash
# Builds PyCUDA, which has no wheel, from its source distribution into the venv $1, by the installer $2, beside the wheels
# that $3 names. Its own tests stay in $1/source/test.
set -euo pipefail
venv=$1 uv=$2 pinned=$3
mkdir "$venv/links" "$venv/download" "$venv/source"
grep -v '^pycuda==' "$pinned" >"$venv/download/wheels.txt"
"$uv" pip install --quiet --no-deps --python "$venv" --requirement "$venv/download/wheels.txt"
hash=759516160628ba06f32ce7e563e3f5b9214691dc9528a03ea99ea1073f4e14ba
echo "$(grep '^pycuda==' "$pinned") --hash=sha256:$hash" >"$venv/download/pinned.txt"
.venv/bin/python -m pip download --quiet --no-deps --no-binary pycuda --require-hashes \
    --dest "$venv/download" --requirement "$venv/download/pinned.txt"
tar -xzf "$venv"/download/pycuda-*.tar.gz -C "$venv/source" --strip-components=1
# The linker wants names without a version, which wheels do not have.
toolkit=$(echo "$venv"/lib/python*/site-packages/nvidia/cu13)
ln -s "$toolkit/lib/libcurand.so.10" "$venv/links/libcurand.so"
ln -s "$PWD/target/dist/native/libcuda.so.1" "$venv/links/libcuda.so"
PATH="$toolkit/bin:$PATH" LIBRARY_PATH="$venv/links" CPATH="$toolkit/include" LDFLAGS="-Wl,-rpath,$toolkit/lib" \
    "$uv" pip install --quiet --no-deps --python "$venv" "$venv"/download/pycuda-*.tar.gz
