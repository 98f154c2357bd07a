"""Workers of programs that do not use CUDA themselves: each generation has the memory that the one before it had."""

from __future__ import annotations

import pytest
from support.system import Appliance, native

METHODS = ("fork", "spawn", "forkserver")


@pytest.mark.parametrize("method", METHODS)
def test_natively(method: str) -> None:
    run = native("worker_generations.py", method, "4")
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("carrier", ["auto", "direct", "grpc"])
def test_on_a_share(remote: Appliance, carrier: str, method: str) -> None:
    run = remote.run("worker_generations.py", method, "85", env={"REMOTEGPU_CARRIER": carrier})
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr
