"""Shows the main job: train.py on the software GPU alone, then on 0.25 of one that another process holds.

A second tenant holds another 0.5 of the same GPU and trains on it at the same time. Both runs execute blocks in a fixed
order, so their results must be equal to the bit. Ends with a report; exits 1 if the results differ or the accuracy is
low.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
REMOTEGPU = str(Path(sys.executable).parent / "remotegpu")
TRAIN = [sys.executable, str(HERE / "train.py")]
GPU_MEMORY = 4 << 30
FIXED_ORDER = {"REMOTEGPU_SOFTGPU_THREADS": "1"}
# numba remarks on small grids and on its own linker; neither is about this program.
QUIET = {"NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "0", "PYTHONWARNINGS": "ignore"}


def say(text: str) -> None:
    print(f"\n==> {text}", flush=True)


def free_port() -> int:
    """A loopback port that is free together with the next one (control and data)."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def wait_until_ready(endpoint: str, appliance: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(240):
        health = subprocess.run([REMOTEGPU, "doctor", "--appliance", endpoint], capture_output=True)
        if health.returncode == 0:
            return
        if appliance.poll() is not None:
            sys.exit(f"demo: the appliance ended with code {appliance.returncode}:\n{log.read_text()}")
        time.sleep(0.25)
    sys.exit(f"demo: the appliance at {endpoint} is not ready after a minute: {health.stdout.decode()}")


def train(arguments: list[str], environment: dict[str, str], results: Path) -> dict[str, Any]:
    started = time.monotonic()
    run = subprocess.run(
        [REMOTEGPU, "run", *arguments, "--", *TRAIN, "--json", str(results)], env=os.environ | QUIET | environment
    )
    if run.returncode:
        sys.exit(f"demo: the training ended with code {run.returncode}")
    outcome: dict[str, Any] = json.loads(results.read_text())
    return outcome | {"wall": time.monotonic() - started}


def report(native: dict[str, Any], remote: dict[str, Any], stats: dict[str, Any]) -> bool:
    equal = native["guesses"] == remote["guesses"] and native["final_loss"] == remote["final_loss"]
    rows = [
        ("", "software GPU alone", "0.25 through an appliance"),
        ("test accuracy", f"{native['accuracy']:.4f}", f"{remote['accuracy']:.4f}"),
        ("GPU memory seen", f"{native['memory_bytes'] / 2**20:.0f} MiB", f"{remote['memory_bytes'] / 2**20:.0f} MiB"),
        ("training", f"{native['seconds']:.1f} s", f"{remote['seconds']:.1f} s"),
        ("with start and compiling", f"{native['wall']:.1f} s", f"{remote['wall']:.1f} s"),
        ("CUDA calls made", "", f"{stats['calls']:,}"),
        ("answered locally", "", f"{stats['local_calls']:,}"),
        ("commands sent", "", f"{stats['commands']:,}"),
        ("round trips", "", f"{stats['round_trips']:,}"),
        ("bytes sent", "", f"{stats['bytes_sent']:,}"),
        ("bytes received", "", f"{stats['bytes_received']:,}"),
    ]
    say(f"Report: {native['steps']} training steps, a second tenant on 0.5 of the same GPU meanwhile")
    for name, left, right in rows:
        print(f"  {name:<26}{left:>20}{right:>28}")
    print(f"\n  results {'equal to the bit' if equal else 'DIFFER'}; accuracy above 0.95: {remote['accuracy'] > 0.95}")
    return equal and native["accuracy"] > 0.95 and remote["accuracy"] > 0.95


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="remotegpu-demo-") as folder:
        results = Path(folder)
        say("An unmodified numba-cuda program on the software GPU, no network")
        memory = {"REMOTEGPU_SOFTGPU_MEMORY": str(GPU_MEMORY)}
        native = train(["--native"], FIXED_ORDER | memory, results / "native.json")

        endpoint = f"127.0.0.1:{free_port()}"
        say(f"An appliance with one software GPU of {GPU_MEMORY >> 20} MiB at {endpoint}")
        log = results / "appliance.log"
        appliance = subprocess.Popen(
            [
                REMOTEGPU,
                "appliance",
                "--backend",
                "software",
                "--listen",
                endpoint,
                "--memory",
                f"{GPU_MEMORY >> 20}MiB",
            ],
            env=os.environ | FIXED_ORDER,
            stderr=log.open("w"),
        )
        tenant = None
        try:
            wait_until_ready(endpoint, appliance, log)
            say("A second tenant takes 0.5 of it and trains")
            tenant = subprocess.Popen(
                [REMOTEGPU, "run", "--appliance", endpoint, "-p", "0.5", "--", *TRAIN, "--epochs", "100000"],
                stdout=subprocess.PIPE,
                env=os.environ | QUIET,
                start_new_session=True,
            )
            assert tenant.stdout is not None
            while b"epoch  1" not in (line := tenant.stdout.readline()):
                if not line:
                    sys.exit("demo: the second tenant ended early; its messages are above")
            drain = subprocess.Popen(["cat"], stdin=tenant.stdout, stdout=subprocess.DEVNULL)

            say("The same program on 0.25 of the appliance's GPU")
            stats = results / "stats.json"
            remote = train(
                ["--appliance", endpoint, "-p", "0.25"], {"REMOTEGPU_STATS": str(stats)}, results / "remote.json"
            )
            subprocess.run([REMOTEGPU, "ls", "--appliance", endpoint])
            good = report(native, remote, json.loads(stats.read_text()))
        finally:
            if tenant is not None:
                os.killpg(tenant.pid, signal.SIGTERM)
                tenant.wait()
                drain.wait()
            appliance.terminate()
            appliance.wait()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
