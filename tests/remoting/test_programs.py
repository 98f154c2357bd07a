"""The same program natively and remotely, against NumPy inside the program."""

from __future__ import annotations

import pytest
from support.system import SELF_CHECKING, Appliance, native


@pytest.mark.parametrize("program", [p for p in SELF_CHECKING if p != "full_queue.py"])
def test_native(program: str) -> None:
    run = native(program)
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr


@pytest.mark.parametrize("program", SELF_CHECKING)
def test_remote(remote: Appliance, program: str) -> None:
    run = remote.run(program)
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr


@pytest.mark.parametrize("carrier", ["direct", "grpc"])
def test_both_carriers(remote: Appliance, carrier: str) -> None:
    for program in ("vector_add.py", "relay_through_pinned.py"):
        run = remote.run(program, env={"REMOTEGPU_CARRIER": carrier})
        assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr
