#!/usr/bin/env bash
# Installs vLLM and what it imports (tests/null/serving.txt) into target/null-serving, once for each list, and prints how
# much was fetched and how long it took.
set -euo pipefail
cd "$(dirname "$0")/.."
pinned=tests/null/serving.txt folder=target/null-serving
key=$(sha256sum <"$pinned" | cut -d' ' -f1)
if [ "$(cat "$folder/.installed" 2>/dev/null)" = "$key" ]; then
    echo "==> 0 MB fetched: vLLM and torch are in $folder"
    exit
fi
echo "==> vLLM and torch into $folder: 4 GB to load, 7 GB on the disk"
begun=$SECONDS
test -x "$folder/bin/python" || python3 -m venv "$folder"
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
