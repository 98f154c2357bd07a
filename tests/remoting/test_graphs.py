"""CUDA graphs: what random ones leave, what a launch sends, and what becomes of them when the appliance is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.system import PROGRAMS, REMOTEGPU, Appliance, line, native, until

STICKY = 911
WRONG_THREAD = 908  # CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
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


def check_loss(appliance: Appliance, where: str, victim: Callable[[int], int]) -> None:
    """Kills `victim`, which is given the worker, when the program is at that place. Either way the worker ends."""
    with appliance.start("lose_in_graph.py", where, stdin=subprocess.PIPE) as program:
        assert line(program) == "ready"
        (worker,) = appliance.workers()
        os.kill(victim(worker), signal.SIGKILL)
        until(lambda: not Path(f"/proc/{worker}").exists(), 5, "the worker is gone")
        assert program.stdin
        program.stdin.write("\n")
        program.stdin.flush()
        assert line(program) == f"error {STICKY} {STICKY}"
        assert program.wait(20) == 0


@pytest.mark.parametrize("where", ["capture", "instantiate", "launch"])
def test_a_worker_that_is_lost_ends_a_graph_with_one_error(remote: Appliance, where: str) -> None:
    check_loss(remote, where, lambda worker: worker)
    until(lambda: remote.leased_bytes() == remote.used_bytes() == 0, 5, "the share is back")


@pytest.mark.parametrize("where", ["capture", "instantiate", "launch"])
def test_an_appliance_that_is_lost_ends_a_graph_with_one_error(own_remote: Appliance, where: str) -> None:
    check_loss(own_remote, where, lambda _: own_remote.process.pid)


@pytest.mark.parametrize("how", ["return", "exit", "crash"])
def test_a_capture_that_never_ends_leaves_nothing_behind(remote: Appliance, how: str) -> None:
    run = remote.run("abandon_capture.py", how)
    assert run.stdout == "ready\n", run.stderr
    until(lambda: remote.leased_bytes() == remote.used_bytes() == 0, 5, "the share is back")
    until(lambda: not remote.workers(), 5, "its worker is gone")
    # The next session gets all of the memory, and has graphs.
    again = remote.run("graph_launches.py", "1", share="1.0")
    assert (again.returncode, again.stdout) == (0, "ok\n"), again.stderr


def check_thread(run: subprocess.CompletedProcess[str]) -> None:
    # A kernel before, and twice ten; what the thread captured, and what was added to that, never ran.
    assert (run.returncode, run.stdout) == (0, f"{WRONG_THREAD} 0 21\n"), run.stderr


def test_a_thread_that_ends_in_its_capture_natively() -> None:
    check_thread(native("abandon_capture.py", "thread"))


def test_a_thread_that_ends_in_its_capture_on_a_share(remote: Appliance) -> None:
    check_thread(remote.run("abandon_capture.py", "thread"))
    until(lambda: remote.leased_bytes() == remote.used_bytes() == 0, 5, "the share is back")
