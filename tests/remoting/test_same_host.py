"""A program beside its appliance: by the appliance's Unix socket, and by TCP where that is asked for."""

from __future__ import annotations

from pathlib import Path

from support.system import appliance


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
