#!/usr/bin/env bash
# How long handing memory over takes, for docs/benchmarks.md: each way so many rounds, 85 % of 1 GiB, by the Unix socket,
# on a machine that has nothing else to do, or beside BUSY processes that want a CPU each; the load is printed.
# tools/compare/hand_over.sh [ROUNDS [BUSY [WAYS [ROUNDS WITHOUT A FIRST ONE]]]]
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-500} busy=${2:-0} ways=${3:-return exit kill exec free unmap trim reset} alone=${4:-20}
folder=$(mktemp -d)
cc -O1 -o "$folder/hand_over" tests/programs/hand_over.c -ldl
.venv/bin/remotegpu appliance --backend software --listen 127.0.0.1:7078 --memory 1GiB --quiet &
appliance=$! loops=()
trap 'kill $appliance "${loops[@]}"; wait $appliance; rm -r "$folder"' EXIT
for _ in $(seq 60); do
    if .venv/bin/remotegpu doctor --appliance 127.0.0.1:7078 >"$folder/doctor" 2>&1; then break; fi
done
for _ in $(seq "$busy"); do
    (while :; do :; done) &
    loops+=($!)
done
run() {
    printf '%s, load %s: ' "$1" "$(cut -d' ' -f1 /proc/loadavg)"
    .venv/bin/remotegpu run --appliance 127.0.0.1:7078 -p 1 -- "$folder/hand_over" "${@:2}"
}
run "none before (2.5 s after its end)" return "$alone" 85 2500
for how in $ways; do
    run "$how" "$how" "$rounds" 85 0
done
