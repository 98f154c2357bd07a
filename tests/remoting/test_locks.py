"""No call of a program waits for work under a lock that the end of this work needs, and a mirror that ends with wrong
bytes is told and ends nevertheless."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.faultproxy import Way
from support.proxied import before_data, command
from support.system import PROGRAMS, REMOTEGPU, Appliance, appliance

WAITS = ["unregister", "window", "pool", "mapping"]
UNKNOWN = 999


@pytest.fixture(scope="module")
def two_gpus() -> Iterator[Appliance]:
    with appliance("--gpus", "2") as it:
        yield it


@pytest.mark.parametrize("wait", WAITS)
def test_a_wait_ends_natively(wait: str) -> None:
    program = [sys.executable, str(PROGRAMS / "waits_under_locks.py"), wait]
    words = [REMOTEGPU, "run", "--native", "-n", "2", "--", *program]
    run = subprocess.run(words, capture_output=True, text=True, timeout=150)
    assert (run.returncode, run.stdout) == (0, "passed\n"), run.stderr


@pytest.mark.parametrize("carrier", ["auto", "direct"])
@pytest.mark.parametrize("wait", WAITS)
def test_a_wait_ends(two_gpus: Appliance, wait: str, carrier: str) -> None:
    env = {"REMOTEGPU_CARRIER": carrier}
    run = two_gpus.run("waits_under_locks.py", wait, options=("-n", "2"), env=env, timeout=150)
    assert (run.returncode, run.stdout) == (0, "passed\n"), run.stderr


def test_a_mirror_of_a_context_that_is_destroyed_while_it_works_is_compared(two_gpus: Appliance) -> None:
    env = {"REMOTEGPU_CHECK_MIRRORS": "1"}
    run = two_gpus.run("ended_mirror.py", "destroy-busy", options=("-n", "1"), env=env)
    assert (run.returncode, run.stdout) == (0, "0 busy True\n"), run.stderr


@pytest.mark.parametrize("end", ["free", "destroy"])
@pytest.mark.parametrize("damaged", [False, True])
def test_a_mirror_that_ends_is_compared(end: str, damaged: bool) -> None:
    """The proxy changes the word that the appliance reports, as a fault of the report would."""
    env = {**os.environ, "REMOTEGPU_CARRIER": "direct", "REMOTEGPU_CHECK_MIRRORS": "1"}
    with appliance() as remote, before_data(remote) as proxy:
        if damaged:
            proxy.replace_once(Way.BACK, (0x5EEDF00D).to_bytes(4, "little"), (0x5EEDF00F).to_bytes(4, "little"))
        words = command(remote, sys.executable, str(PROGRAMS / "ended_mirror.py"), end)
        run = subprocess.run(words, capture_output=True, text=True, timeout=120, env=env)
    said = f"{UNKNOWN} 0x5eedf00f True\n" if damaged else "0 0x5eedf00d True\n"
    assert (run.returncode, run.stdout) == (0, said), run.stderr
    assert ("are not what the GPU has" in run.stderr) == damaged, run.stderr
