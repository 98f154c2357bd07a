"""An appliance that divides the time of its GPU: programs go on as ever, and what they have of it is counted.

How exactly it is divided is tested where time can be made to stand still: `remoting/worker/tests/turns.rs`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from support.leases import leases
from support.system import Appliance, appliance, line, until


@pytest.fixture(scope="module")
def turns() -> Iterator[Appliance]:
    with appliance("--compute-mode", "turns", "--grace", "0s") as it:
        yield it


@contextlib.contextmanager
def held(it: Appliance, *options: str, share: str = "0.25") -> Iterator[subprocess.Popen[str]]:
    """A lease that does nothing."""
    command = it.command("sh", "-c", "echo ready; exec sleep 600", share=share, options=options)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert line(process) == "ready"
        yield process
    finally:
        process.terminate()
        process.communicate()


def place(it: Appliance) -> dict[str, Any]:
    (lease,) = leases(it)
    found: dict[str, Any] = lease["places"][0] | {"limit": lease["compute_limit_milli"]}
    return found


@pytest.mark.parametrize(
    "program",
    [
        ["vector_add.py"],
        ["graph_launches.py", "3"],
        ["callbacks.py"],
        ["mirrored_words.py", "20", "1024", "16", "8", "each"],
        ["full_queue.py"],
        ["spin_and_release.py"],
    ],
    ids=lambda program: program[0],
)
def test_programs_do_what_they_always_do_beside_another(turns: Appliance, program: list[str]) -> None:
    with turns.start("backlog.py", share="0.25") as neighbour:
        assert line(neighbour)
        found = turns.run(*program)
        assert found.returncode == 0, found.stderr
        assert neighbour.stderr is not None
        assert neighbour.poll() is None, neighbour.stderr.read()


def test_guarantee_and_limit_are_shown_and_the_ledger_keeps_sums(turns: Appliance) -> None:
    with held(turns, "--compute", "0.75", "--compute-limit", "0.9"):
        assert (place(turns)["compute_milli"], place(turns)["limit"]) == (750, 900)
        refused = turns.run("true", share="0.5", options=("--no-wait",))
        assert refused.returncode != 0
        assert "0.25 of its time free" in refused.stderr, "as much of its memory would be"
        assert turns.run("true", share="0.5", options=("--no-wait", "--compute", "0.25")).returncode == 0
    with held(turns, share="0.1"):
        assert (place(turns)["compute_milli"], place(turns)["limit"]) == (100, 1000), "as of its memory"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--compute", "1.5"), "1.5"),
        (("--compute", "0.5", "--compute-limit", "0.25"), "a limit is at least the guarantee"),
        (("--compute", "nothing"), "'nothing' is not a number"),
    ],
)
def test_what_makes_no_sense_is_refused(turns: Appliance, options: tuple[str, ...], said: str) -> None:
    refused = turns.run("true", options=options)
    assert (refused.returncode, said in refused.stderr) == (2, True), refused.stderr


def test_an_appliance_that_divides_nothing_refuses_what_it_could_not_keep() -> None:
    with appliance() as shared:
        refused = shared.run("true", options=("--compute", "0.25"))
        assert (refused.returncode, "--compute-mode turns" in refused.stderr) == (2, True), refused.stderr
        with held(shared):
            assert place(shared)["compute_milli"] == place(shared)["limit"] == 0


def test_gpu_time_is_counted_and_outlives_the_gateway(turns: Appliance) -> None:
    with turns.start("backlog.py") as program:
        assert line(program)
        until(lambda: place(turns)["gpu_nanoseconds"] > 0, 30, "its time is counted")
        found = subprocess.run(
            ["pgrep", "-P", str(turns.process.pid), "-f", "remotegpu-gateway"],
            capture_output=True,
            text=True,
            check=True,
        )
        (gateway,) = map(int, found.stdout.split())
        os.kill(gateway, signal.SIGKILL)
        # A new gateway gives turns to the same worker.
        until(lambda: turns.cli("ls").returncode == 0, 30, "calls are answered again")
        before = place(turns)["gpu_nanoseconds"]
        until(lambda: place(turns)["gpu_nanoseconds"] > before, 30, "it computes on")
        assert program.poll() is None
