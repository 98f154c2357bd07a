#!/usr/bin/env bash
# Installs vLLM and what it imports (tests/null/serving.txt) into target/null-serving, once for each list, and prints how
# much was fetched and how long it took. `sglang` instead adds what SGLang has beside them (tests/null/sglang.txt), in
# target/null-sglang, and a folder (cuda/) of the nvcc of .venv as its compiler wants it.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-serving}
pinned=tests/null/$what.txt folder=target/null-$what
key=$(sha256sum <"$pinned" | cut -d' ' -f1)
if [ "$(cat "$folder/.installed" 2>/dev/null)" = "$key" ]; then
    echo "==> 0 MB fetched: what $pinned names is in $folder"
    exit
fi
case $what in
    serving) echo "==> vLLM and torch into $folder: 4 GB to load, 7 GB on the disk" ;;
    sglang) echo "==> SGLang into $folder, beside vLLM's packages: 2 GB to load, 6 GB on the disk" ;;
esac
begun=$SECONDS
test -x "$folder/bin/python" || python3 -m venv "$folder"
if [ "$what" = sglang ]; then
    (cd target/null-serving/lib/python3*/site-packages && pwd) >"$(echo "$folder"/lib/python3*/site-packages)/vllm.pth"
    mkdir -p "$folder/cuda/lib64"
    toolkit=$(echo "$PWD"/.venv/lib/python*/site-packages/nvidia/cu13)
    for part in bin include nvvm cccl; do ln -sfn "$toolkit/$part" "$folder/cuda/$part"; done
    ln -sfn "$toolkit/lib/libcudart.so.13" "$folder/cuda/lib64/libcudart.so"
fi
"$folder/bin/python" -m pip install --disable-pip-version-check --no-cache-dir --no-deps --require-hashes \
    --progress-bar off -r "$pinned" >"$folder/pip.log" ||
    { tail -20 "$folder/pip.log" >&2; echo "null_serving.sh: pip failed; all it said is in $folder/pip.log" >&2; exit 1; }
# Each line of a file ends in its size, as `Downloading name.whl (1.2 MB)` does.
awk -v seconds=$((SECONDS - begun)) '
    $1 == "Downloading" && match($0, /\([0-9.]+ [kMG]?B\)$/) {
        split(substr($0, RSTART + 1, RLENGTH - 2), size, " ")
        sum += size[1] * (size[2] == "GB" ? 1000 : size[2] == "MB" ? 1 : size[2] == "kB" ? 0.001 : 0.000001)
    }
    END { printf "==> %d MB fetched, in %d s with their installation\n", sum, seconds }' "$folder/pip.log"
echo "$key" >"$folder/.installed"
