"""Shows which disturbances a session survives: runs train.py undisturbed, and then with its connection cut five times,
its share given to another program for a while, and moved to a second appliance. Ends with a report; exits 1 if the
results differ. (`make demo-survive`)"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from support.faultproxy import FaultProxy
from support.system import REMOTEGPU, Appliance

TRAIN = Path(__file__).parent / "train.py"
CUTS = 5
# The proxies' address: the ports are the appliance's own.
BEHIND_PROXIES = "127.0.0.2"
# numba remarks on small grids and on its own linker; neither is about this program.
QUIET = {"NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "0", "PYTHONWARNINGS": "ignore"}


def say(text: str) -> None:
    print(f"\n==> {text}", flush=True)


def training(endpoint: str, results: Path, share: str = "0.75", epochs: int = 50) -> subprocess.Popen[str]:
    program = [sys.executable, "-u", str(TRAIN), "--epochs", str(epochs), "--json", str(results)]
    command = [REMOTEGPU, "run", "--appliance", endpoint, "-p", share, "--", *program]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | QUIET)


def follow(program: subprocess.Popen[str], prefix: str = "    ") -> None:
    """Shows what the program prints until it has ended."""
    assert program.stdout is not None
    for line in program.stdout:
        if not line.startswith("epoch") or line[:8].endswith("0"):
            print(f"{prefix}{line}", end="", flush=True)
    if program.wait():
        sys.exit(f"demo: a training ended with code {program.returncode}")


def epochs_of(program: subprocess.Popen[str], count: int) -> None:
    """Shows what the program prints until `count` epochs are over."""
    assert program.stdout is not None
    while count:
        line = program.stdout.readline()
        if not line:
            sys.exit(f"demo: the training ended early with code {program.wait()}")
        print(f"    {line}", end="", flush=True)
        count -= line.startswith("epoch")


def change(remote: Appliance, command: str, lease: str, *options: str) -> str:
    done = remote.cli(command, lease, *options, timeout=60)
    if done.returncode:
        sys.exit(f"demo: {done.stderr}")
    print(done.stdout, end="", flush=True)
    return done.stdout.strip()


def disturbed(remote: Appliance, other: Appliance, proxy: FaultProxy, folder: Path) -> tuple[dict[str, Any], list[str]]:
    program = training(f"{BEHIND_PROXIES}:{remote.endpoint.rpartition(':')[2]}", folder / "disturbed.json")
    for number in range(CUTS):
        epochs_of(program, 1)
        say(f"Its connection is cut ({number + 1} of {CUTS})")
        proxy.cut()
    epochs_of(program, 1)
    (lease,) = remote.inventory()["appliances"][0]["leases"]
    name = lease["lease_id"][:8]
    say("Its share is given away: remotegpu suspend")
    change(remote, "suspend", name)
    say("Somebody else trains on 0.95 of the same GPU")
    follow(training(remote.endpoint, folder / "other.json", share="0.95", epochs=1), prefix="    other: ")
    say("It gets its share back: remotegpu resume")
    said = [change(remote, "resume", name)]
    epochs_of(program, 5)
    say("It moves to a second appliance: remotegpu migrate")
    said.append(change(remote, "migrate", name, "--to", other.endpoint))
    remote.stop()
    say("The first appliance has ended; the program goes on")
    follow(program)
    return json.loads((folder / "disturbed.json").read_text()), said


def main() -> None:
    started = time.monotonic()
    # Blocks in a fixed order: sums are then equal to the bit.
    os.environ["REMOTEGPU_SOFTGPU_THREADS"] = "1"
    remote, other = Appliance(memory_mib=1024), Appliance(memory_mib=1024)
    with tempfile.TemporaryDirectory(prefix="remotegpu-demo-") as made:
        folder, port = Path(made), int(remote.endpoint.rpartition(":")[2])
        try:
            remote.wait_until_ready()
            other.wait_until_ready()
            say("An unmodified numba-cuda program on 0.75 of a software GPU, undisturbed")
            follow(training(remote.endpoint, folder / "undisturbed.json"))
            wanted = json.loads((folder / "undisturbed.json").read_text())
            say("The same again, with its connection through a proxy")
            control, data = (
                FaultProxy("127.0.0.1", port + more, listen_host=BEHIND_PROXIES, listen_port=port + more)
                for more in (0, 1)
            )
            with control, data:
                found, said = disturbed(remote, other, data, folder)
        finally:
            remote.stop()
            other.stop()
    equal = all(wanted[key] == found[key] for key in ("guesses", "final_loss", "accuracy"))
    say(f"Report, after {time.monotonic() - started:.0f} s")
    print(f"  connection cut {CUTS} times; {'; '.join(said)}")
    print(f"  accuracy {wanted['accuracy']:.4f} undisturbed, {found['accuracy']:.4f} disturbed")
    print(f"  results {'equal to the bit' if equal else 'DIFFER'}")
    sys.exit(0 if equal else 1)


if __name__ == "__main__":
    main()
