"""Page-locked memory that a program shares with its worker on the same machine: copies go without the wire.
Where it is shared no longer they go by the wire."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.leases import end, lease, tell
from support.system import MIB, PROGRAMS, Appliance, appliance, line


@pytest.fixture(scope="module")
def two() -> Iterator[tuple[Appliance, Appliance]]:
    with appliance(memory_mib=1024) as one, appliance(memory_mib=1024) as other:
        yield one, other


def counted(remote: Appliance, out: Path, **env: str) -> dict[str, Any]:
    done = remote.run("shared_copies.py", env={"REMOTEGPU_STATS": str(out), **env})
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    statistics: dict[str, Any] = json.loads(out.read_text())
    return statistics


def test_bytes_of_shared_memory_do_not_travel(two: tuple[Appliance, Appliance], tmp_path: Path) -> None:
    shared = counted(two[0], tmp_path / "shared")
    by_tcp = counted(two[0], tmp_path / "tcp", REMOTEGPU_CARRIER="direct")
    assert by_tcp["bytes_sent"] > 32 * MIB < by_tcp["bytes_received"]
    # Rows that lie apart in the program's memory, and what is small.
    assert shared["bytes_sent"] < 2 * MIB > shared["bytes_received"]


def test_every_copy_fails_after_a_kernel_has(two: tuple[Appliance, Appliance]) -> None:
    """More copies than there are pieces of memory for them."""
    done = two[0].run("copies_after_trap.py")
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_a_limit_of_the_size_of_files_ends_no_program(two: tuple[Appliance, Appliance], tmp_path: Path) -> None:
    command = f"ulimit -f 1024; exec {sys.executable} {PROGRAMS}/shared_copies.py"
    out = tmp_path / "statistics"
    done = two[0].run("bash", "-c", command, env={"REMOTEGPU_STATS": str(out)})
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    assert json.loads(out.read_text())["bytes_sent"] > 32 * MIB


def test_copies_go_by_the_wire_where_a_session_has_moved(two: tuple[Appliance, Appliance]) -> None:
    one, other = two
    with one.start("shared_copies.py", "again", stdin=subprocess.PIPE) as program:
        for here, there in ((one, other), (other, one)):
            assert line(program) == "ok"
            done = here.cli("migrate", lease(here), "--to", there.endpoint, timeout=100)
            assert done.returncode == 0, done.stderr
            tell(program)
        assert line(program) == "ok"
        end(program)


def test_memory_is_shared_after_its_share_was_suspended(two: tuple[Appliance, Appliance], tmp_path: Path) -> None:
    one, _ = two
    out = tmp_path / "statistics"
    with one.start("shared_copies.py", "again", env={"REMOTEGPU_STATS": str(out)}, stdin=subprocess.PIPE) as program:
        assert line(program) == "ok"
        name = lease(one)
        for order in ("suspend", "resume"):
            done = one.cli(order, name, timeout=100)
            assert done.returncode == 0, done.stderr
        tell(program)
        assert line(program) == "ok"
        end(program)
    assert json.loads(out.read_text())["bytes_sent"] < 4 * MIB
