"""The appliance knows of a session's client whether its process has ended, whatever way its connection takes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import grpc
import pytest
from support.stand_in import LOST, StandIn, Tenant
from support.system import MIB, until

from remotegpu.appliance.sessions.clients import Client, identity
from remotegpu.appliance.sessions.exports import Exports
from remotegpu.appliance.sessions.returns import GIVE_WAY_SECONDS, gives_way_in
from remotegpu.appliance.sessions.state import Lease, Session
from remotegpu.appliance.shares.allocation import LeasedGpus
from remotegpu.rpc import pb

SHARE = 256 * MIB
# As a client does, from what it reads of /proc/self.
NAMES_ITSELF = """
import os
boot = open("/proc/sys/kernel/random/boot_id").read().strip()
start = open("/proc/self/stat").read().rpartition(")")[2].split()[19]
print(os.getpid(), boot, os.readlink("/proc/self/ns/pid"), start, flush=True)
input()
"""
WAITS_FOR_INPUT = [sys.executable, "-c", "input()"]


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(WAITS_FOR_INPUT, stdin=subprocess.PIPE) as it:
        yield it
        it.kill()


def seconds_to_get(tenant: Tenant, pid: int, process: str, next_process: str = "") -> float:
    """How long the next session waits for the memory of one that has lost its connection."""
    first, following = tenant.session(pid, process), tenant.session(pid if next_process else 1, next_process)
    assert first.grant(SHARE) == SHARE
    first.ask(LOST)
    if not next_process:
        os.kill(pid, signal.SIGKILL)
    since = time.monotonic()
    assert following.grant(SHARE) == SHARE
    assert "needed its place" in first.rest()
    return time.monotonic() - since


def test_a_session_whose_process_was_killed_gives_way_at_once(tenant: Tenant, process: subprocess.Popen[bytes]) -> None:
    assert seconds_to_get(tenant, process.pid, identity(process.pid)) < GIVE_WAY_SECONDS / 2


def test_a_session_that_its_process_has_left_by_exec_gives_way_at_once(
    tenant: Tenant, process: subprocess.Popen[bytes]
) -> None:
    known = identity(process.pid)
    assert seconds_to_get(tenant, process.pid, known, known) < GIVE_WAY_SECONDS / 2


def test_nothing_is_known_of_a_process_that_is_not_of_this_machine(process: subprocess.Popen[bytes]) -> None:
    boot, namespace, start = identity(process.pid).split()
    others = (
        f"{boot[::-1]} {namespace} {start}",
        f"{boot} pid:[1] {start}",
        f"{boot} {namespace} {int(start) + 1}",
        f"{boot} {namespace}",
    )
    assert Client.of(process.pid, "") is None
    assert Client.of(process.pid, "x" * 100_000) is None

    async def run() -> None:
        ended = asyncio.Event()
        found = [Client.of(process.pid, name) for name in (*others, identity(process.pid))]
        clients = [client for client in found if client is not None]
        for client in clients:
            await client.watch(ended.set if client is clients[-1] else lambda: pytest.fail("another one is watched"))
        process.kill()
        await asyncio.wait_for(ended.wait(), 10)
        assert [client.ended for client in clients] == [False] * len(others) + [True]

    asyncio.run(run())


def test_a_process_of_a_namespace_below_is_seen() -> None:
    """A container's: it knows itself by another number than we do."""
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    inside = ["unshare", *user, "--pid", "--fork", "--mount-proc", sys.executable, "-c", NAMES_ITSELF]
    with subprocess.Popen(inside, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as it:
        stdin, stdout = it.stdin, it.stdout
        assert stdin and stdout
        pid, name = stdout.readline().rstrip("\n").split(" ", 1)

        async def run() -> None:
            ended = asyncio.Event()
            client = Client.of(int(pid), name)
            # Its start is that of no process of this number.
            other = Client.of(int(pid), f"{name}0")
            assert client and other
            await client.watch(ended.set)
            await other.watch(lambda: pytest.fail("another one is watched"))
            assert not client.ended
            stdin.close()
            await asyncio.wait_for(ended.wait(), 10)
            assert (client.ended, other.ended) == (True, False)

        asyncio.run(run())


def test_a_lost_session_whose_process_may_live_has_its_time() -> None:
    lease = Lease("00" * 16, "", "", LeasedGpus((0,), (SHARE,)), [], [], Exports([]))
    lost = Session("lost", lease, 7, "", None, lost_since=time.monotonic())
    asks = Client.of(8, "boot namespace 1")
    for client in (None, Client.of(7, "boot namespace 1"), Client.of(8, "boot namespace 2")):
        lost.client = client
        assert gives_way_in(lost, asks) > GIVE_WAY_SECONDS / 2
    lost.client = Client.of(8, "boot namespace 1")
    assert gives_way_in(lost, asks) == 0
    assert gives_way_in(lost, None) > GIVE_WAY_SECONDS / 2


def test_its_worker_is_told_that_nobody_comes_back(
    appliance: StandIn, tenant: Tenant, process: subprocess.Popen[bytes]
) -> None:
    session = tenant.session(process.pid, identity(process.pid))
    process.kill()
    until(lambda: session.ask("told") == ["clientended"], 10, "it is told")


def test_who_opens_a_session_learns_of_those_that_it_can_see(tenant: Tenant) -> None:
    seen = tenant.session(7, "boot pid:[1] 100")
    for pid, process in ((8, ""), (9, "boot pid:[2] 100"), (10, "other pid:[1] 100"), (11, "100")):
        tenant.session(pid, process)
    neighbours = tenant.open_session(12, process="boot pid:[1] 200").neighbours
    assert [(each.session_id, each.pid, each.process) for each in neighbours] == [
        (seen.reply.session_id, 7, "boot pid:[1] 100")
    ]
    assert not tenant.open_session(13).neighbours


def test_another_process_of_the_lease_tells_of_an_end_that_the_appliance_does_not_see(tenant: Tenant) -> None:
    first, following = tenant.session(7, "boot pid:[1] 100"), tenant.session(8, "boot pid:[1] 200")
    assert first.grant(SHARE) == SHARE
    stub = tenant.appliance.client._stub
    wrong = pb.CloseSessionRequest(session_id=first.reply.session_id, lease_secret="00" * 32, client_ended=True)
    with pytest.raises(grpc.RpcError):
        stub.CloseSession(wrong)
    assert first.ask("told") == []
    wrong.lease_secret = tenant.granted.lease_secret
    stub.CloseSession(wrong)
    until(lambda: first.ask("told") == ["clientended"], 10, "its worker is told")
    # A session that has its connection stays, whatever another process reports about it.
    assert following.grant(SHARE) == 0
    first.ask(LOST)
    since = time.monotonic()
    assert following.grant(SHARE) == SHARE
    assert time.monotonic() - since < GIVE_WAY_SECONDS / 2


def test_what_cannot_be_seen_has_no_identity() -> None:
    assert identity(os.getpid()).count(" ") == 2
    assert identity(2**30) == ""
