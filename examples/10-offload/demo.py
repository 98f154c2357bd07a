"""train.py five times: here, on an appliance as a device, switched to another appliance in the middle, as a function,
and as a whole program.

All five compute on this machine's CPU by the same kernels, so all losses must agree to the last bit. Ends with a
report; exits 1 if anything differs or the accuracy is low.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from remotegpu.api.quantities import Ask
from remotegpu.cli.run.local import local_appliance

HERE = Path(__file__).resolve().parent
OUT = HERE / "out"
REMOTEGPU = str(Path(sys.executable).parent / "remotegpu")
LEAST_ACCURACY = 0.95
SECONDS = 600
# What the two appliances offer: an interpreter under a name, so that one can be chosen.
ENVIRONMENTS = ("first", "second")


def say(text: str) -> None:
    print(f"\n==> {text}", flush=True)


def fail(text: str) -> None:
    sys.exit(f"demo-offload: {text}")


def result_of(name: str, process: subprocess.Popen[str], started: float) -> dict[str, Any]:
    """Returns the result that train.py wrote; ends the demo if the program failed."""
    code = process.wait(SECONDS)
    if code:
        fail(f"{name} ended with code {code}, see above")
    result: dict[str, Any] = json.loads((OUT / f"{name}.json").read_text())
    return result | {"wall": time.monotonic() - started}


def start(name: str, command: Sequence[str], epochs: int, *options: str) -> subprocess.Popen[str]:
    arguments = ["train.py", *options, "--epochs", str(epochs), "--json", f"out/{name}.json"]
    # As train.py itself says on this side: so small a network gains nothing from more threads.
    variables = {"REMOTEGPU_STATS": str(OUT / f"{name}.stats"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, *arguments], cwd=HERE, env=os.environ | variables, stdout=subprocess.PIPE, text=True
    )


def lines(process: subprocess.Popen[str]) -> Iterator[str]:
    """Yields the lines that the program prints, and shows them as they come."""
    assert process.stdout is not None
    for line in process.stdout:
        print("   ", line, end="", flush=True)
        yield line


def run(name: str, command: Sequence[str], epochs: int, *options: str) -> dict[str, Any]:
    started = time.monotonic()
    process = start(name, command, epochs, *options)
    for _ in lines(process):
        pass
    return result_of(name, process, started)


def run_and_switch(name: str, command: Sequence[str], epochs: int, environment: str) -> dict[str, Any]:
    """Does the same as `run`; after half of the epochs the session moves to the appliance that has this environment."""
    started = time.monotonic()
    process = start(name, command, epochs)
    middle = f"epoch {epochs // 2} "
    session, moved = "", False
    for line in lines(process):
        if not session:
            [session] = [found["id"] for found in sessions() if found["pid"] == descendant(process.pid, found["pid"])]
        if line.startswith(middle):
            switch = ["offload", "switch", session, "--backend", "cpu", "--environment", environment]
            say(f"remotegpu {' '.join(switch)}")
            switched = subprocess.run([REMOTEGPU, *switch])
            if switched.returncode:
                process.kill()
                fail(f"the session did not move (code {switched.returncode}), see above")
            moved = True
    if not moved:
        fail(f"the training never said {middle.strip()!r}")
    return result_of(name, process, started)


def sessions() -> list[dict[str, Any]]:
    shown = subprocess.run([REMOTEGPU, "offload", "stats", "--json"], capture_output=True, text=True, check=True)
    found: Any = json.loads(shown.stdout)
    return found["sessions"] if isinstance(found, dict) else list(found)


def descendant(ancestor: int, pid: int) -> int:
    """`pid` if it runs below `ancestor`, else 0."""
    current = pid
    while current > 1 and current != ancestor:
        try:
            current = int(Path(f"/proc/{current}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return 0
    return pid if current == ancestor else 0


def crossed(name: str) -> dict[str, Any]:
    """Returns what the session wrote at its end: `counters`, `moves`, and its last `place`."""
    said: dict[str, Any] = json.loads((OUT / f"{name}.stats").read_text())
    return {key: said[key] for key in ("counters", "moves", "place")}


def report(results: dict[str, dict[str, Any]], appliances: Sequence[str]) -> bool:
    plain = results["plain"]
    print(
        f"\n{'':<12} {'accuracy':>9} {'losses':>18} {'training':>10} {'ratio':>6} {'trips/step':>11} {'bytes/step':>11}"
    )
    for name, result in results.items():
        steps = result["steps"]
        counters = result.get("counters")
        trips = f"{counters['round_trips'] / steps:.2f}" if counters else ""
        size = f"{(counters['bytes_in'] + counters['bytes_out']) / steps:,.0f}" if counters else ""
        ratio = f"{result['seconds'] / plain['seconds']:.2f}"
        print(
            f"{name:<12} {result['accuracy']:>9.4f} {result['digest']:>18} {result['seconds']:>8.1f} s {ratio:>6} "
            f"{trips:>11} {size:>11}"
        )
    device, switched = results["device"], results["switched"]
    checks = {
        "as a device, the same losses as here": device["losses"] == plain["losses"],
        f"the session moved from {appliances[0]} to {appliances[1]}": (
            device["place"].endswith(f" {appliances[0]}")
            and switched["place"].endswith(f" {appliances[1]}")
            and switched["moves"] == 1
        ),
        "switched in the middle, the device gives the same losses": switched["losses"] == device["losses"],
        "as a function, the same losses as here": results["function"]["losses"] == plain["losses"],
        "as a whole program, the same losses as here": results["program"]["losses"] == plain["losses"],
        f"every accuracy is at least {LEAST_ACCURACY}": all(
            result["accuracy"] >= LEAST_ACCURACY for result in results.values()
        ),
    }
    print()
    for text, good in checks.items():
        print(f"{'yes' if good else 'NO '}  {text}")
    return all(checks.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="an interpreter with torch and scikit-learn")
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()
    # Not its real path: a virtual environment's interpreter is a link, and knows its packages by the link's place.
    python = os.path.abspath(options.python)
    epochs = options.epochs
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    results: dict[str, dict[str, Any]] = {}
    with contextlib.ExitStack() as stack:
        say("1. train.py by plain Python")
        results["plain"] = run("plain", [python], epochs, "--device", "cpu")
        say(f"two appliances, each a process of its own that offers {python}")
        appliances = [
            stack.enter_context(local_appliance(Ask(), "--offload", f"{name}={python}:cpu")) for name in ENVIRONMENTS
        ]
        both = ",".join(appliances)
        shown = subprocess.run([REMOTEGPU, "offload", "backends", "--appliance", both])
        if shown.returncode:
            fail("the appliances do not say what they offer, see above")
        here = [REMOTEGPU, "offload", "run", "--python", python]
        offload = [*here, "--appliance", appliances[0]]
        say("2. torch mode: what train.py calls cuda is an acceptor's device")
        results["device"] = run("device", offload, epochs)
        say("3. the same with a share of each appliance, and after half of it the session moves from one to the other")
        shares = [*here, "-n", "2", "--appliance", both]
        results["switched"] = run_and_switch("switched", shares, epochs, ENVIRONMENTS[1])
        say("4. function mode: its function main runs in an acceptor")
        results["function"] = run("function", [*offload, "--config", "function.yaml"], epochs, "--device", "cpu")
        say("5. program mode: the whole program runs in an acceptor")
        whole = [*offload, "--split", "app", "--config", "app.yaml"]
        results["program"] = run("program", whole, epochs, "--device", "cpu")
    for name in ("device", "switched", "function", "program"):
        results[name] |= crossed(name)
    good = report(results, appliances)
    say("done" if good else "something differs")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
