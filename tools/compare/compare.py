"""Compares the cost of calls in two built trees, natively on the software GPU and on a share of it.

PYTHONPATH=tests .venv/bin/python tools/compare/compare.py OLD NEW [PAIRS]

The cost is the time that the caller waits; on a share, also the processor time of the calling process. OLD and NEW are
checkouts with `.venv` and `target/dist`, built with CARGO_INCREMENTAL=0. They are measured in turn, PAIRS times (8),
and each end has a CPU of its own. In each run the tree is mounted at NEW's path in a mount namespace, because a virtual
environment contains its path. This needs root.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median

from support.system import free_port, until

# Per call: how long its caller waits, and the processor time of the process, in microseconds.
Costs = dict[str, tuple[float, float]]


def main(old: str, new: str, pairs: str = "8") -> None:
    trees = {"old": Path(old).resolve(), "new": Path(new).resolve()}
    belongs = trees["new"] / ".venv/bin/python"
    if not (trees["new"] / ".venv/bin/remotegpu").read_text().startswith(f"#!{belongs}"):
        sys.exit(f"the virtual environment of {new} was made at another path: give NEW by that path")
    found: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "calls")
        source = Path(__file__).with_name("calls.c")
        subprocess.run(["cc", "-O1", "-w", "-o", program, source, "-ldl"], check=True)
        for pair in range(int(pairs)):
            for which in ("old", "new") if pair % 2 == 0 else ("new", "old"):
                for place, costs in {
                    "natively": natively(trees[which], program),
                    "on a share": on_a_share(trees[which], trees["new"], program),
                }.items():
                    for call, cost in costs.items():
                        found[place, call][which].append(cost)
            print(f"{pair + 1} of {pairs}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    print("| before, now, ratio | natively | on a share | processor time there |\n|---|---|---|---|")
    for call in dict.fromkeys(call for _, call in found):
        shown = (("natively", 0), ("on a share", 0), ("on a share", 1))
        cells = [cell(found[place, call], kind) for place, kind in shown]
        print(f"| {call} | {' | '.join(cells)} |")


def cell(costs: dict[str, list[tuple[float, float]]], kind: int) -> str:
    old, new = (median(each[kind] for each in costs[which]) for which in ("old", "new"))
    return f"{old:.3g}, {new:.3g}, {new / old:.2f}"


def natively(tree: Path, program: Path) -> Costs:
    library = {"LD_LIBRARY_PATH": str(tree / "target/dist/native")}
    return read(["taskset", "-c", "0", str(program)], os.environ | library)


def on_a_share(tree: Path, seen_at: Path, program: Path) -> Costs:
    address = f"127.0.0.1:{free_port()}"
    serving = ["taskset", "-c", "1", *inside(tree, seen_at, f"appliance --insecure --memory 1GiB --listen {address}")]
    appliance = subprocess.Popen(serving, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: listens(address), 60, f"an appliance at {address}")
        run = inside(tree, seen_at, f"run --appliance {address} --fraction 0.5 -- taskset -c 0 {program}")
        return read(run, os.environ)
    finally:
        appliance.terminate()
        appliance.wait()


def inside(tree: Path, seen_at: Path, command: str) -> list[str]:
    """Returns the command line that runs `remotegpu COMMAND` of a tree."""
    mount = f"mount --make-rprivate / && mount --bind {tree} {seen_at} && cd {seen_at}"
    return ["unshare", "-m", "sh", "-c", f"{mount} && exec .venv/bin/remotegpu {command}"]


def listens(address: str) -> bool:
    host, port = address.split(":")
    try:
        socket.create_connection((host, int(port)), 1).close()
    except OSError:
        return False
    return True


def read(command: list[str], environment: os._Environ[str] | dict[str, str]) -> Costs:
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    lines = (line.split("\t") for line in done.stdout.splitlines())
    return {call: (float(waits), float(uses)) for call, waits, uses in lines}


if __name__ == "__main__":
    main(*sys.argv[1:])
