"""Reads leases of an appliance, and runs programs that hold one."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from typing import Any

from support.system import Appliance, again_and_again, line


def leases(remote: Appliance) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = remote.inventory()["appliances"][0]["leases"]
    return found


def lease(remote: Appliance) -> str:
    """Returns the name of the only lease."""
    (one,) = leases(remote)
    return str(one["lease_id"])[:8]


def tell(program: subprocess.Popen[str], text: str = "again\n") -> None:
    assert program.stdin is not None
    program.stdin.write(text)
    program.stdin.flush()


def end(program: subprocess.Popen[str]) -> str:
    """Waits for the end of a program, which must succeed. Returns its stderr."""
    _, errors = program.communicate(timeout=60)
    assert program.returncode == 0, errors
    return errors


@contextlib.contextmanager
def keeping(remote: Appliance, mib: int, share: str = "0.5") -> Iterator[subprocess.Popen[str]]:
    """Runs a program that allocates memory, and checks the memory for each line on its stdin."""
    with remote.start("keep_and_check.py", str(mib), share=share, stdin=subprocess.PIPE) as program:
        assert line(program) == "ready"
        yield program


@contextlib.contextmanager
def suspended_often(remote: Appliance) -> Iterator[list[int]]:
    """Suspends and resumes all leases repeatedly during the block. The list gets an entry for each time."""

    def suspend(times: list[int]) -> None:
        for each in leases(remote):
            name = str(each["lease_id"])
            if remote.cli("suspend", name, timeout=100).returncode == 0:
                times.append(len(times))
                remote.cli("resume", name, timeout=100)

    with again_and_again(0.1, suspend) as times:
        yield times


@contextlib.contextmanager
def moved_often(one: Appliance, other: Appliance) -> Iterator[list[int]]:
    """Moves all leases to and fro between two appliances during the block. The list gets an entry for each time."""
    here, there = one, other

    def move(times: list[int]) -> None:
        nonlocal here, there
        for each in leases(here):
            name = str(each["lease_id"])
            if here.cli("migrate", name, "--to", there.endpoint, timeout=100).returncode == 0:
                times.append(len(times))
                here, there = there, here

    with again_and_again(0.1, move) as times:
        yield times
