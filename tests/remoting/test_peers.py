"""Two devices of one appliance reach each other's memory, in one process and in two."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.system import PROGRAMS, REMOTEGPU, Appliance, appliance

PROFILES = ["normal", "hostile"]


@pytest.fixture(params=PROFILES)
def two_gpus(request: pytest.FixtureRequest) -> Iterator[Appliance]:
    with appliance("--gpus", "2", profile=request.param) as it:
        yield it


@pytest.mark.parametrize("mode", ["", "ended"])
def test_kernels_reach_what_the_program_allowed_natively(mode: str) -> None:
    native = [REMOTEGPU, "run", "--native", "-n", "2", "--", sys.executable, str(PROGRAMS / "peers.py"), *mode.split()]
    run = subprocess.run(native, capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout) == (0, "reached\n"), run.stderr


@pytest.mark.parametrize("mode", ["", "ended"])
def test_kernels_reach_what_the_program_allowed(two_gpus: Appliance, mode: str) -> None:
    run = two_gpus.run("peers.py", *mode.split(), options=("-n", "2"))
    assert (run.returncode, run.stdout) == (0, "reached\n"), run.stderr


KINDS = ["allocated", "registered", "managed", "created"]


def test_kernels_meet_in_page_locked_memory_natively() -> None:
    program = str(PROGRAMS / "kernels_that_meet.py")
    native = [REMOTEGPU, "run", "--native", "-n", "2", "--", sys.executable, program, *KINDS]
    run = subprocess.run(native, capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout) == (0, "met\n"), run.stderr


def test_kernels_meet_in_page_locked_memory(two_gpus: Appliance) -> None:
    run = two_gpus.run("kernels_that_meet.py", *KINDS, options=("-n", "2"), timeout=120)
    assert (run.returncode, run.stdout) == (0, "met\n"), run.stderr


def test_processes_with_a_device_each_reach_the_others_memory(two_gpus: Appliance) -> None:
    run = two_gpus.run("share_peers.py", options=("-n", "2"))
    assert (run.returncode, run.stdout) == (0, "shared\n"), run.stderr


def test_devices_of_two_appliances_do_not() -> None:
    with appliance() as one, appliance() as other:
        where = f"{one.endpoint},{other.endpoint}"
        command = [REMOTEGPU, "run", "--appliance", where, "-n", "2", "-p", "0.25", "--", sys.executable]
        run = subprocess.run(
            [*command, str(PROGRAMS / "peers.py"), "apart"], capture_output=True, text=True, timeout=120
        )
    assert (run.returncode, run.stdout) == (0, "reached\n"), run.stderr
