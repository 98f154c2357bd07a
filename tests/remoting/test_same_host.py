"""A program on its appliance's machine: by the appliance's Unix socket, and by TCP if requested."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from support.system import Appliance, appliance, line


def test_a_session_comes_back_by_the_socket_that_nobody_else_of_the_machine_reaches() -> None:
    with appliance() as it:
        done = it.run("cut_itself.py")
        before, after = done.stdout.split()
        assert Path(before).is_socket(), done.stderr
        assert before == after
        assert Path(before).parent.stat().st_mode & 0o777 == 0o700


def test_tcp_is_taken_where_it_is_asked_for() -> None:
    with appliance() as it:
        done = it.run("cut_itself.py", env={"REMOTEGPU_CARRIER": "direct"})
        assert done.stdout.split() == ["tcp", "tcp"], done.stderr


@pytest.mark.timeout(120)
def test_launches_are_given_while_the_worker_takes_none(own_remote: Appliance) -> None:
    """More of them than a Unix socket holds."""
    with subprocess.Popen(
        own_remote.command("run_ahead.py"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert line(program) == "ready"
        (worker,) = own_remote.workers()
        os.kill(worker, signal.SIGSTOP)
        assert program.stdin is not None
        try:
            program.stdin.write("\n")
            program.stdin.flush()
            assert line(program) == "given"
        finally:
            os.kill(worker, signal.SIGCONT)
        assert line(program) == "20000"
    assert program.returncode == 0
