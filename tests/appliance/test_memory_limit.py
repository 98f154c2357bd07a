"""The limit of the appliance's own container, and the report where the kernel limits no session."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.stand_in import StandIn

from remotegpu.api.quantities import Ask
from remotegpu.appliance.machine.cgroups import Cgroups, own_groups
from remotegpu.appliance.machine.room import Room, own_room
from remotegpu.appliance.sessions.exports import Exports
from remotegpu.appliance.sessions.memory_watch import largest
from remotegpu.appliance.sessions.state import Lease, Session
from remotegpu.appliance.shares.allocation import LeasedGpus

MIB, GIB = 1 << 20, 1 << 30
QUARTER = Ask(milli_per_gpu=250)


@pytest.mark.parametrize(
    ("limit", "most"),
    [
        (64 * GIB, 64 * GIB - 512 * MIB),
        (1 * GIB, 768 * MIB),
        (256 * MIB, 192 * MIB),
        (100 * MIB, 50 * MIB),
    ],
)
def test_the_appliance_counts_below_its_limit(limit: int, most: int) -> None:
    assert Room(Path("/nowhere"), True, limit).most == most


@pytest.mark.parametrize(
    ("second", "files", "used"),
    [
        (True, {"memory.current": "900", "memory.stat": "anon 5\ninactive_file 100\nactive_file 200\n"}, 600),
        (False, {"memory.usage_in_bytes": "900", "memory.stat": "cache 7\ntotal_inactive_file 100\n"}, 800),
        (True, {}, 0),
    ],
)
def test_files_that_the_kernel_gives_up_do_not_count(
    tmp_path: Path, second: bool, files: dict[str, str], used: int
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert Room(tmp_path, second, 1000).used() == used


def test_those_that_hold_most_end_until_there_is_room() -> None:
    lease = Lease("lease", "secret", "test", LeasedGpus((0,), (10,)), [], [], Exports([]))
    sessions = [Session(str(size), lease, size, "test", None, host_bytes=size) for size in (10, 40, 30, 50)]
    ((sentence, ending),) = [(each.sentence, each.sessions) for each in largest(sessions, 60, 4 * GIB)]
    assert [session.host_bytes for session in ending] == [50, 40]
    assert all(word in sentence for word in ("4.0 GiB", "spec.resources")), sentence
    # A session that was told to end, and has not ended yet, goes first.
    sessions[0].ended = True
    ((_, ending),) = [(each.sentence, each.sessions) for each in largest(sessions, 60, 4 * GIB)]
    assert [session.host_bytes for session in ending] == [10, 50]
    # If sessions do not hold the excess, none of them ends.
    assert not list(largest(sessions, 131, 4 * GIB))
    assert not list(largest([], 60, GIB))


@contextlib.contextmanager
def limited(limit: int) -> Iterator[tuple[str, ...]]:
    """Yields the command prefix that starts a program in a cgroup of its own, with this memory limit."""
    memory = next((each for each in own_groups() if "memory" in each.controllers), None)
    if memory is None or "memory" not in Cgroups().controllers:
        pytest.skip("no cgroup can be made here")
    folder = memory.folder / f"remotegpu-test-{os.getpid()}"
    folder.mkdir()
    try:
        name = "memory.max" if memory.second else "memory.limit_in_bytes"
        (folder / name).write_text(str(limit))
        join = f"open({str(folder / 'cgroup.procs')!r}, 'w').write('0')"
        yield sys.executable, "-c", f"import os, sys\n{join}\nos.execvp(sys.argv[1], sys.argv[1:])"
    finally:
        folder.rmdir()


def test_the_appliance_ends_a_session_before_the_kernel_ends_anything(dist: Path) -> None:
    """Its budgets would let it go on: only the container's limit is exceeded."""
    budgets = ("--host-memory-per-lease", "8GiB", "--host-memory-per-tenant", "8GiB")
    with limited(GIB) as prefix, StandIn(dist, *budgets, prefix=prefix) as appliance:
        small, large = (appliance.lease(QUARTER).session(number) for number in range(2))
        large.tell("eat 820")
        large.rest()  # it may have been too busy to hear why
        assert all(word in appliance.log for word in ("1.0 GiB", "container", "spec.resources")), appliance.log
        assert small.ask("identity")["cwd"] == "/"
        assert appliance.process.poll() is None


def test_by_default_budgets_are_parts_of_the_containers_memory() -> None:
    asked = "from remotegpu.appliance.settings import physical_bytes; print(physical_bytes())"
    with limited(GIB) as prefix:
        done = subprocess.run([*prefix, sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert int(done.stdout) == GIB


def test_without_a_cgroup_it_says_what_is_not_enforced_or_refuses(dist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where no hierarchy is to be seen, as in most containers, there is nothing to make a group in.
    code = "from remotegpu.appliance.machine import cgroups; cgroups.own_groups = lambda: []; "
    code += "from remotegpu.cli.app import main; main()"
    monkeypatch.setenv("REMOTEGPU_DIST", str(dist))
    program = [sys.executable, "-c", code, "appliance", "--listen", "127.0.0.1:0", "--anybody"]
    refused = subprocess.run([*program, "--require-cgroup"], capture_output=True, text=True, timeout=60)
    assert refused.returncode != 0
    assert all(word in refused.stderr for word in ("--require-cgroup", "Delegate=yes")), refused.stderr
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as starting:
        assert starting.stderr is not None
        line = next(line for line in starting.stderr if "cgroup" in line or "ready" in line)
        starting.terminate()
    assert all(word in line for word in ("WARNING", "holds no session to its budget", "every two seconds")), line


def test_a_machine_without_a_limit_has_no_room_of_its_own() -> None:
    room = own_room()
    assert room is None or room.limit < 1 << 60
