#!/usr/bin/env bash
# Records the test programs on this machine's real driver into target/recordings (or $1), with memory contents: one file each, and
# codes.txt with every program's exit code. docs/trace-format.md says how they are used. Needs target/dist and .venv, or the
# bundle of tools/gpu_bundle.sh: PYTHON and REMOTEGPU name other ones.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${1:-target/recordings}
python=${PYTHON:-.venv/bin/python}
remotegpu=${REMOTEGPU:-.venv/bin/remotegpu}

# Without a variable of ours the recorder takes the machine's driver; the software GPU must not stand before it.
if [[ ${LD_LIBRARY_PATH:-} == *dist/native* || ! -e /dev/nvidiactl ]]; then
    echo "record_gpu: this needs a machine with an NVIDIA GPU, and LD_LIBRARY_PATH without the software GPU" >&2
    exit 69
fi
mkdir -p "$folder"
: >"$folder/codes.txt"
# As tests/gpu runs them directly, without bad_handles.py: a real driver follows bad handles and crashes.
for program in vector_add free_under_kernel spin_and_release relay_through_pinned callbacks mapped_memory error_codes memory_seen; do
    code=0
    "$remotegpu" trace --record "$folder/$program.trace" --contents -- "$python" "tests/programs/$program.py" || code=$?
    echo "$program $code" >>"$folder/codes.txt"
done
"$python" - "$folder" <<'PYTHON'
import os, subprocess, sys
from pathlib import Path
sys.path.insert(0, "tests")
from compiled_programs import building

folder, toolkit = Path(sys.argv[1]).resolve(), building.toolkit()
remotegpu = os.environ.get("REMOTEGPU", ".venv/bin/remotegpu")
for source in building.DRIVER_PROGRAMS if toolkit else ():
    if source.startswith("nvml"):
        continue
    program = building.build(source, folder, toolkit)
    record = [remotegpu, "trace", "--record", folder / f"{program.name}.trace", "--contents", "--", program]
    with (folder / "codes.txt").open("a") as codes:
        codes.write(f"{program.name} {subprocess.run(record, check=False).returncode}\n")
PYTHON
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader >"$folder/gpu.txt" || true
echo "==> $folder: $(ls "$folder"/*.trace | wc -l) recordings"
