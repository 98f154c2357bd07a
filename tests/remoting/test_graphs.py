"""CUDA graphs: what random ones leave, what a launch sends, and what becomes of them when the appliance is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.system import PROGRAMS, REMOTEGPU, Appliance, line

STICKY = 911
COUNT = int(os.environ.get("REMOTEGPU_GRAPH_PROGRAMS", "12"))
RANDOM = (sys.executable, str(PROGRAMS / "random_graphs.py"), os.environ.get("REMOTEGPU_GRAPH_SEED", "0"), str(COUNT))


def check(run: subprocess.CompletedProcess[str]) -> None:
    results = [json.loads(text) for text in run.stdout.splitlines()]
    wrong = [result for result in results if result["differs"]]
    assert not wrong, f"`random_graphs.py {wrong[0]['seed']} 1` repeats it: {wrong[0]}\n{run.stderr}"
    assert (run.returncode, len(results)) == (0, COUNT), run.stderr


def test_random_graphs_natively() -> None:
    check(subprocess.run([REMOTEGPU, "run", "--native", "--", *RANDOM], capture_output=True, text=True, timeout=300))


def test_random_graphs_on_a_share(remote: Appliance) -> None:
    check(remote.run(*RANDOM, timeout=300))


def test_a_launch_of_a_thousand_kernels_is_one_short_command(remote: Appliance, tmp_path: Path) -> None:
    counted = []
    for times in ("1", "101"):
        out = tmp_path / times
        run = remote.run("graph_launches.py", times, env={"REMOTEGPU_STATS": str(out)})
        assert run.returncode == 0, run.stderr
        counted.append(json.loads(out.read_text()))
    once, often = counted
    assert often["commands"] - once["commands"] == 100
    assert often["bytes_sent"] - once["bytes_sent"] <= 100 * 64
    assert often["round_trips"] == once["round_trips"]


@pytest.mark.parametrize("where", ["capture", "instantiate", "launch"])
def test_an_appliance_that_is_lost_ends_a_graph_with_one_error(remote: Appliance, where: str) -> None:
    with remote.start("lose_in_graph.py", where, stdin=subprocess.PIPE) as program:
        assert line(program) == "ready"
        (worker,) = remote.workers()
        os.kill(worker, signal.SIGKILL)
        assert program.stdin
        program.stdin.write("\n")
        program.stdin.flush()
        assert line(program) == f"error {STICKY} {STICKY}"
        assert program.wait(20) == 0
