"""Limits of one lease and one tenant besides GPU memory: sessions, and memory of the machine."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.stand_in import StandIn, Tenant
from support.system import free_port, until

from remotegpu.api.failures import ApplianceError, Failure
from remotegpu.api.quantities import Ask
from remotegpu.appliance.machine.cgroups import Cgroups
from remotegpu.appliance.machine.held import held_by
from remotegpu.appliance.sessions.budgets import HostMemory, part_of_sessions, unknown_budget
from remotegpu.appliance.sessions.exports import Exports
from remotegpu.appliance.sessions.state import Lease, Session
from remotegpu.appliance.shares.allocation import LeasedGpus
from remotegpu.rpc.client import Access, ApplianceClient, parse_endpoint

QUARTER = Ask(milli_per_gpu=250)
MIB = 1 << 20


def opened(lease: Tenant, tries: int) -> tuple[int, str]:
    """How many sessions fit, and why no more do."""
    refusals = [lease.open_session(number).refusal for number in range(tries)]
    return refusals.count(""), next((refusal for refusal in refusals if refusal), "")


@contextlib.contextmanager
def as_another(appliance: StandIn, token: str) -> Iterator[None]:
    """Makes the block's calls to the appliance with another token."""
    client = ApplianceClient(parse_endpoint(appliance.endpoint), Access(token), call_seconds=20)
    appliance.open_connections.callback(client.close)
    appliance.client, owner = client, appliance.client
    yield
    appliance.client = owner


@pytest.mark.parametrize(
    ("sessions", "size", "part"),
    [(16, 1000, 16), (16, 500, 8), (16, 250, 4), (16, 100, 4), (128, 250, 32), (128, 1, 4), (3, 1, 3), (100, 333, 34)],
)
def test_the_part_is_that_of_the_memory_and_at_least_four(sessions: int, size: int, part: int) -> None:
    assert part_of_sessions(sessions, size, 1000) == part


def test_a_lease_gets_its_part_of_a_gpus_sessions(dist: Path) -> None:
    with StandIn(dist, "--sessions-per-gpu", "16") as appliance:
        greedy, modest = appliance.lease(QUARTER), appliance.lease(QUARTER)
        count, why = opened(greedy, 10)
        assert count == 4
        assert all(word in why for word in ("gpu 0", "4 sessions", "--sessions-per-gpu", "larger share")), why
        assert opened(modest, 4)[0] == 4


def test_every_lease_finds_a_place_for_its_first_session(dist: Path) -> None:
    with StandIn(dist, "--sessions-per-gpu", "5") as appliance:
        greedy, late, later = (appliance.lease(QUARTER) for _ in range(3))
        count, why = opened(greedy, 5)
        assert count == 3, "a place is kept for each of the others"
        assert all(word in why for word in ("gpu 0", "--sessions-per-gpu", "try later")), why
        assert [opened(lease, 1)[0] for lease in (late, later)] == [1, 1]


def test_a_tenant_has_a_budget_of_all_its_leases(dist: Path, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("[user]\nalice:one\nbob:two\n")
    options = ("--tokens", str(tmp_path / "tokens"), "--sessions-per-tenant", "3")
    with StandIn(dist, *options, access=Access("one")) as appliance:
        first, second = appliance.lease(QUARTER), appliance.lease(QUARTER)
        assert opened(first, 2)[0] == 2
        count, why = opened(second, 2)
        assert count == 1
        assert all(word in why for word in ("alice", "3 sessions", "--sessions-per-tenant")), why
        with as_another(appliance, "two"):
            assert opened(appliance.lease(QUARTER), 2)[0] == 2


def test_a_tenant_has_half_of_the_leases(dist: Path, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("[user]\nalice:one\nbob:two\n")
    options = ("--tokens", str(tmp_path / "tokens"), "--max-leases", "4")
    with StandIn(dist, *options, access=Access("one")) as appliance:
        for _ in range(2):
            appliance.lease(Ask(milli_per_gpu=100))
        with pytest.raises(ApplianceError, match="alice has its limit of 2 leases") as refused:
            appliance.lease(Ask(milli_per_gpu=100))
        assert refused.value.failure is Failure.BUSY
        with as_another(appliance, "two"):
            appliance.lease(Ask(milli_per_gpu=100))


def test_memory_of_the_machine_is_reported(dist: Path) -> None:
    port = free_port()
    with StandIn(dist, "--metrics-port", str(port)) as appliance:
        lease = appliance.lease(QUARTER)
        session = lease.session()

        def shown() -> int:
            return int(appliance.client.inventory().leases[0].host_bytes)

        until(lambda: shown() > MIB, 20, "the process is measured")
        before = shown()
        session.ask("eat 64")
        until(lambda: shown() >= before + 64 * MIB, 20, "what it took is seen")
        ls = json.loads(appliance.cli("ls", "--json").stdout)
        assert ls["appliances"][0]["leases"][0]["host_bytes"] >= before + 64 * MIB
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            metrics = answer.read().decode()
        name = f'remotegpu_lease_host_bytes{{lease="{lease.granted.lease_id[:8]}"}}'
        line = next(line for line in metrics.splitlines() if line.startswith(name))
        assert float(line.rpartition(" ")[2]) >= before + 64 * MIB


def test_a_lease_that_takes_too_much_of_the_machine_loses_its_largest_session(dist: Path) -> None:
    with StandIn(dist, "--host-memory-per-lease", "200MiB") as appliance:
        greedy, modest = appliance.lease(QUARTER), appliance.lease(QUARTER)
        large, small, other = greedy.session(1), greedy.session(2), modest.session(3)
        # Past its budget, to which the GPUs' memory is added, but below the limit at which the kernel kills.
        large.tell("eat 480")
        assert "--host-memory-per-lease" in large.rest()
        assert small.ask("identity")["cwd"] == "/"
        assert other.ask("identity")["cwd"] == "/"


def test_a_tenant_that_takes_too_much_of_the_machine_loses_its_largest_session(dist: Path, tmp_path: Path) -> None:
    """None of the tenant's leases is past its own budget."""
    (tmp_path / "tokens").write_text("[user]\nalice:one\nbob:two\n")
    options = ("--tokens", str(tmp_path / "tokens"), "--host-memory-per-tenant", "300MiB")
    small = Ask(memory_bytes=20 * MIB)
    with StandIn(dist, *options, access=Access("one")) as appliance:
        first, second = appliance.lease(small), appliance.lease(small)
        modest, large = first.session(1), second.session(2)
        with as_another(appliance, "two"):
            other = appliance.lease(small).session(3)
        modest.ask("eat 150")
        other.ask("eat 150")
        large.tell("eat 250")
        sentence = large.rest()
        assert all(word in sentence for word in ("alice holds", "340.0 MiB", "--host-memory-per-tenant")), sentence
        assert modest.ask("identity")["cwd"] == "/"
        assert other.ask("identity")["cwd"] == "/"


def test_many_that_take_a_little_each_are_too_many_together() -> None:
    """Sessions end until the others are within the budget; those that already end are not counted."""
    leases = [lease_with("alice", [10, 30, 20]), lease_with("alice", [25]), lease_with("bob", [60])]
    leases[0].sessions["2"].ended = True
    assert [(each.sentence, each.sessions) for each in HostMemory(100, 60, software=False).excesses(leases)] == [
        (
            "alice holds 65 B of the appliance's own memory, its budget is 60 B (--host-memory-per-tenant), "
            "and this process holds most: load less device code, copy less at a time",
            [leases[0].sessions["1"]],
        )
    ]
    (excess,) = HostMemory(100, 20, software=False).excesses(leases[:2])
    assert [session.host_bytes for session in excess.sessions] == [30, 25]
    (excess,) = HostMemory(50, 100, software=False).excesses(leases)
    assert excess.sessions == [leases[2].sessions["0"]]
    assert not list(HostMemory(50, 60, software=True).excesses(leases)), "10 bytes are its GPU's"


def lease_with(owner: str, held: list[int]) -> Lease:
    """A lease on a GPU of 10 bytes, with one session for each of these sizes of host memory."""
    lease = Lease("lease", "secret", "test", LeasedGpus((0,), (10,)), [], [], Exports([]), owner=owner)
    for number, size in enumerate(held):
        session = Session(str(number), lease, number, "test", None, host_bytes=size)
        lease.sessions[session.session_id] = session
    return lease


@pytest.mark.skipif(not Cgroups().controllers, reason="no cgroup can be made here")
def test_the_workers_of_a_lease_are_in_a_cgroup_of_its_own_where_there_are_any(dist: Path) -> None:
    with StandIn(dist, "--host-memory-per-lease", "200MiB") as appliance:
        lease = appliance.lease(QUARTER)
        name = f"remotegpu-{appliance.process.pid}-{lease.granted.lease_id[:16]}"
        groups = [lease.session(number).ask("cgroups") for number in range(2)]
        assert groups[0] == groups[1]
        assert any(group.endswith(f"/{name}") for group in groups[0]), groups[0]
        killed = lease.session(3)
        killed.tell("eat 900")
        assert killed.rest() == "", "the kernel ends it at once"
        lease.close()
        until(lambda: not list(Path("/sys/fs/cgroup").rglob(name)), 20, "the group is gone")


def test_what_a_killed_worker_left_is_counted(dist: Path) -> None:
    port = free_port()
    with StandIn(dist, "--metrics-port", str(port)) as appliance:
        session = appliance.lease(QUARTER).session()
        assert session.grant(10 * MIB) == 10 * MIB
        session.tell("die 9")

        def left() -> float:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
                lines = answer.read().decode().splitlines()
            return next(float(line.split()[1]) for line in lines if line.startswith("remotegpu_left_bytes_total"))

        until(lambda: left() == 10 * MIB, 20, "it is counted")


def test_a_process_that_has_ended_holds_nothing() -> None:
    assert held_by(1 << 30).bytes == 0
    assert held_by(os.getpid()).bytes > MIB


def test_budgets_of_sessions_are_checked_at_the_start() -> None:
    assert unknown_budget("streams=7") == ""
    for wrong in ("streams", "streams=-1", "stream=7", "streams=x"):
        assert wrong in unknown_budget(wrong)


def test_a_process_that_does_not_let_itself_be_looked_into_is_told() -> None:
    """The kernel hides a program that its user may execute but not read (`would_dump`)."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        program = Path(folder) / "sleep"
        for mode, hides in ((0o755, False), (0o111, True)):
            shutil.copy("/bin/sleep", program)
            program.chmod(mode)
            if (pid := os.fork()) == 0:
                os._exit(0 if _hides_beside(program) is hides else 1)
            assert os.waitpid(pid, 0)[1] == 0, oct(mode)
            program.unlink()


def _hides_beside(program: Path) -> bool:
    """Whether this process or its child hides from another user. Changes the user of the process that calls it."""
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, which a change of user takes away
    with subprocess.Popen([program, "60"]) as child:
        try:
            until(lambda: Path(f"/proc/{child.pid}/comm").read_text() == "sleep\n", 10, "it runs its program")
            return held_by(os.getpid(), children=True).hides
        finally:
            child.kill()
