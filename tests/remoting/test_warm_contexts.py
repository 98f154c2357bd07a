"""`--warm-contexts`: a worker with a context waits for the next program."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator

import pytest
from support.leases import leases
from support.system import Appliance, appliance, line, until


@pytest.fixture(scope="module")
def warm() -> Iterator[Appliance]:
    with appliance("--warm-contexts") as it:
        yield it


def ran(remote: Appliance, program: str) -> str:
    done = remote.run(program, timeout=60)
    assert done.returncode == 0, done.stderr
    until(lambda: not leases(remote), 10, "its lease has ended")
    return done.stdout


def takes_a_spare(remote: Appliance) -> bool:
    """Did a program's session have, and end, a worker that was there before it?"""
    before = set(until(remote.workers, 10, "a spare worker"))
    ran(remote, "vector_add.py")
    return bool(before - set(remote.workers()))


def test_programs_get_the_worker_that_waits_and_another_one_follows(warm: Appliance) -> None:
    for _ in range(3):
        until(lambda: takes_a_spare(warm), 30, "a program had the worker that waited")


@pytest.mark.parametrize("program", ["context_flags.py", "error_codes.py"])
def test_nothing_shows_a_program_that_its_context_was_there(warm: Appliance, remote: Appliance, program: str) -> None:
    """An appliance without spare workers is the oracle."""
    until(lambda: takes_a_spare(warm), 30, "a worker waits")
    until(warm.workers, 10, "the next one")
    assert ran(warm, program) == ran(remote, program)


def test_a_spare_worker_that_dies_is_nobodys_loss(warm: Appliance) -> None:
    until(lambda: takes_a_spare(warm), 30, "there are spare workers")
    (spare,) = until(warm.workers, 10, "the next one")
    os.kill(spare, signal.SIGKILL)
    ran(warm, "vector_add.py")
    until(lambda: takes_a_spare(warm), 30, "and there are again")


def test_a_worker_that_gets_no_cpu_is_waited_for(warm: Appliance) -> None:
    """Its program is told after seconds what it waits for, and then runs as always."""

    def told() -> str:
        (spare,) = until(warm.workers, 10, "the next one")
        os.kill(spare, signal.SIGSTOP)
        with warm.start("vector_add.py") as program:
            assert program.stderr is not None
            # Nothing, where the spare was not ready yet and the program got another worker.
            said = program.stderr.readline()
            os.kill(spare, signal.SIGCONT)
            assert line(program) == "ok"
            assert program.wait(30) == 0
        return said

    begun = rf"remotegpu: the worker of {warm.endpoint} has not begun within 5 s; .* up to 60 s; "
    assert re.match(begun, until(told, 60, "a program had the worker that was stopped"))


def test_nothing_is_left_of_spare_workers() -> None:
    with appliance("--warm-contexts") as it:
        (spare,) = until(it.workers, 10, "one waits")
        it.process.send_signal(signal.SIGHUP)
        (after,) = until(lambda: set(it.workers()) - {spare}, 20, "the appliance started anew, and its spare with it")
        with pytest.raises(ProcessLookupError):
            os.kill(spare, 0)
        until(lambda: takes_a_spare(it), 30, "it serves")
    for pid in (spare, after):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 0)
            raise AssertionError("it lives on")
