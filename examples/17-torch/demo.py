"""The same torch training on the CPU, and on 0.25 of a software GPU of an appliance, whose losses are compared.

`make demo-torch` runs it with the torch that `make torch-bed` unpacks. Exits 1 if the losses are apart.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
REMOTEGPU = str(Path(sys.executable).parent / "remotegpu")
# AdamW divides by the root of a mean of squares, so that differences of the last bit grow with the steps.
WITHIN = 1e-3


def train(name, command, folder):
    print(f"\n==> {name}", flush=True)
    results, start = Path(folder) / "results.json", time.monotonic()
    done = subprocess.run([*command, str(HERE / "train.py"), "--json", str(results)])
    if done.returncode:
        sys.exit(f"demo: the training ended with code {done.returncode}")
    return json.loads(results.read_text()) | {"wall": time.monotonic() - start}


def main():
    python = sys.argv[1]
    with tempfile.TemporaryDirectory(prefix="remotegpu-demo-") as folder:
        cpu = train("An unmodified torch training on the CPU", [python], folder)
        share = train("The same on 0.25 of a software GPU", [REMOTEGPU, "run", "-p", "0.25", "--", python], folder)
    if (cpu["device"], share["device"]) != ("cpu", "cuda"):
        sys.exit(f"demo: the trainings ran on {cpu['device']} and {share['device']}, not on cpu and cuda")
    apart = max(abs(one - other) for one, other in zip(cpu["losses"], share["losses"], strict=True))
    print(f"\n==> Report: {len(cpu['losses'])} training steps")
    print(f"  {'':<26}{'the CPU':>14}{'0.25 through an appliance':>28}")
    for name, at in (("first loss", 0), ("last loss", -1)):
        print(f"  {name:<26}{cpu['losses'][at]:>14.6f}{share['losses'][at]:>28.6f}")
    print(f"  {'training':<26}{cpu['seconds']:>12.1f} s{share['seconds']:>26.1f} s")
    print(f"  {'with start':<26}{cpu['wall']:>12.1f} s{share['wall']:>26.1f} s")
    good = apart <= WITHIN and share["losses"][-1] < share["losses"][0] / 2
    print(f"\n  losses are at most {apart:.1g} apart: {'right' if good else 'WRONG'}")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
