"""Memory and events that processes give each other: those of one lease, and natively those of one machine."""

from __future__ import annotations

import pytest
from support.system import Appliance, native


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        (("share_memory.py",), "shared\n"),
        (("share_events.py",), "in order\n"),
        (("share_events.py", "killed"), "went on\n"),
        (("share_many.py",), "room\n"),
        (("waits_elsewhere.py", "process"), "seen\n"),
    ],
)
def test_the_same_natively(program: tuple[str, ...], printed: str) -> None:
    run = native(*program)
    assert (run.returncode, run.stdout) == (0, printed), run.stderr


def test_processes_of_a_lease_share_memory(remote: Appliance) -> None:
    run = remote.run("share_memory.py")
    assert (run.returncode, run.stdout) == (0, "shared\n"), run.stderr


def test_memory_outlives_its_exporter_and_is_charged_once(remote: Appliance) -> None:
    run = remote.run("share_and_die.py", share="0.5")
    assert (run.returncode, run.stdout) == (0, "kept\n"), run.stderr


def test_streams_of_two_processes_wait_for_each_other(remote: Appliance) -> None:
    run = remote.run("share_events.py")
    assert (run.returncode, run.stdout) == (0, "in order\n"), run.stderr


@pytest.mark.parametrize("carrier", ["auto", "direct", "grpc"])
def test_words_of_a_device_are_seen_after_a_wait_for_another_process(remote: Appliance, carrier: str) -> None:
    run = remote.run("waits_elsewhere.py", "process", env={"REMOTEGPU_CARRIER": carrier})
    assert (run.returncode, run.stdout) == (0, "seen\n"), run.stderr


def test_what_waits_for_a_killed_process_goes_on(remote: Appliance) -> None:
    run = remote.run("share_events.py", "killed")
    assert (run.returncode, run.stdout) == (0, "went on\n"), run.stderr


def test_what_is_given_up_makes_room_for_other_exports(remote: Appliance) -> None:
    run = remote.run("share_many.py", share="0.5")
    assert (run.returncode, run.stdout) == (0, "room\n"), run.stderr
