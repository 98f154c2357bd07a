"""Memory that a session of offload holds is counted from outside, however the session holds it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from offload_appliance import lease, offload_appliance, session
from offload_hostile import hostile_environment, run
from support.stand_in import StandIn
from support.system import until

from remotegpu.api.quantities import Ask
from remotegpu.appliance.machine.held import held_by
from remotegpu_offload.wire.errors import LostError
from remotegpu_offload.wire.peer import Peer

MIB = 1 << 20
SHARE = Ask(memory_bytes=20 * MIB)
BUDGET = "300MiB"
TAKEN = 900
#: All of them hold it until the session ends.
MEMORY = {
    "plain": "builtins.kept = bytearray(b'x') * (mib << 20)",
    "memfd": """
builtins.kept = os.memfd_create('kept')
for _ in range(mib):
    os.write(builtins.kept, b'x' * (1 << 20))
""",
    "shared": """
builtins.kept = mmap.mmap(-1, mib << 20)
for at in range(0, mib << 20, 4096):
    builtins.kept[at] = 1
""",
}
#: Only where a session may start processes and has a file system of its own.
WITH_NAMESPACES = {
    "child": """
ready, told = os.pipe()
if os.fork() == 0:
    kept = bytearray(b'x') * (mib << 20)
    os.write(told, b'.')
    signal.pause()
os.read(ready, 1)
""",
    "files": """
with open('/tmp/kept', 'wb') as kept:
    for _ in range(mib):
        kept.write(b'x' * (1 << 20))
""",
}


def taking(kind: str, mib: int) -> str:
    """Returns the code that a tenant runs."""
    return (
        f"import builtins, mmap, os, signal, time\nmib = {mib}\n"
        + {**MEMORY, **WITH_NAMESPACES}[kind]
        + "\nvalue = mib\n"
    )


@pytest.fixture(scope="module", params=["namespaces", "alone"])
def appliance(request: pytest.FixtureRequest) -> Iterator[StandIn]:
    """Starts an appliance of a user who is not root and has no cgroup, as in a pod."""
    # Not below pytest's own folder, which other users cannot read.
    folder = Path(tempfile.mkdtemp(prefix="remotegpu-test-"))
    folder.chmod(0o755)
    try:
        environment = hostile_environment(folder / "hostile", alone=request.param == "alone")
        user = 60_000 + os.getpid() % 3000 if os.geteuid() == 0 else None
        options = ("--host-memory-per-lease", BUDGET)
        with offload_appliance(folder, *options, environments=(environment,), stranger=user) as it:
            it.level = request.param  # type: ignore[attr-defined]
            yield it
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def tenant(appliance: StandIn) -> Iterator[Peer]:
    with lease(appliance, SHARE) as its, session(its) as peer:
        yield peer


@pytest.mark.parametrize("kind", [*MEMORY, *WITH_NAMESPACES])
def test_a_session_past_the_budget_ends_however_it_holds_it(appliance: StandIn, tenant: Peer, kind: str) -> None:
    if kind in WITH_NAMESPACES and appliance.level == "alone":  # type: ignore[attr-defined]
        pytest.skip("such a session has one process, and its folder is on a disk")
    before = appliance.log.count("--host-memory-per-lease")
    with lease(appliance, SHARE) as other, session(other) as bystander:
        with pytest.raises(LostError):
            run(tenant, taking(kind, TAKEN) + "while True:\n    time.sleep(1)\n")
        assert run(bystander, "value = 1") == 1
    assert appliance.log.count("--host-memory-per-lease") == before + 1, appliance.log


def test_a_session_cannot_hide_from_being_counted(tenant: Peer) -> None:
    hide = "import ctypes; libc = ctypes.CDLL(None, use_errno=True); value = [libc.prctl(4, 0), ctypes.get_errno()]"
    assert run(tenant, hide) == [-1, 1], "PR_SET_DUMPABLE is refused with EPERM"


@pytest.mark.parametrize("kind", [*MEMORY, *WITH_NAMESPACES])
def test_what_is_held_is_counted_once(appliance: StandIn, tenant: Peer, kind: str) -> None:
    """Within a few MiB: what two processes share, and what is mapped and open, is not counted twice."""
    if kind in WITH_NAMESPACES and appliance.level == "alone":  # type: ignore[attr-defined]
        pytest.skip("such a session has one process, and its folder is on a disk")

    def held() -> int:
        return int(sum(lease.host_bytes for lease in appliance.client.inventory().leases))

    until(lambda: held() > 0, 20, "it is measured")
    before = held()
    run(tenant, taking(kind, 100))
    until(lambda: held() >= before + 90 * MIB, 20, "it is seen")
    until(lambda: held() <= before + 140 * MIB, 20, "it is not seen twice")


def test_a_file_in_memory_that_is_open_and_mapped_counts_once() -> None:
    before = held_by(os.getpid()).bytes
    file = os.memfd_create("test")
    try:
        os.truncate(file, 64 * MIB)
        os.posix_fallocate(file, 0, 64 * MIB)
        assert before + 60 * MIB <= held_by(os.getpid()).bytes <= before + 80 * MIB
    finally:
        os.close(file)
