"""A move that ends at any of its steps leaves nothing at the destination appliance: no lease, session, process, user
id, memory or invitation. The parts are those of an appliance; the workers are stand-ins.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from support.stand_in import TOTAL_BYTES, snapshot_of

from remotegpu.appliance._generated.worker_requests import Adopted
from remotegpu.appliance.gateway import Gateway
from remotegpu.appliance.leases.leases import Leases
from remotegpu.appliance.machine.cgroups import Cgroups, LeaseGroups
from remotegpu.appliance.machine.uids import Uids
from remotegpu.appliance.metrics import Counters
from remotegpu.appliance.moving import arrivals as arrivals_module
from remotegpu.appliance.moving.arrivals import Arrivals
from remotegpu.appliance.packets import OnPacket
from remotegpu.appliance.refusal import RefusalError
from remotegpu.appliance.sessions.budgets import HostMemory
from remotegpu.appliance.sessions.code_cache import CodeCache
from remotegpu.appliance.sessions.sessions import SessionRefusedError, Sessions
from remotegpu.appliance.sessions.state import Answer, Session
from remotegpu.appliance.sessions.workers import Workers
from remotegpu.appliance.settings import Limits
from remotegpu.appliance.shares.allocation import GpuLeases
from remotegpu.paths import find_dist
from remotegpu.rpc import pb

SHARE = 64 << 20
SESSIONS = ("aa" * 16, "bb" * 16)


class CountedUids(Uids):
    """Hands out user ids that no process has: stand-ins keep ours."""

    def __init__(self) -> None:
        super().__init__(0)
        self.out: set[int] = set()

    def take(self) -> int:
        uid = next(number for number in range(1000) if number not in self.out)
        self.out.add(uid)
        return uid

    def give_back(self, uid: int | None) -> None:
        assert uid is not None
        self.out.remove(uid)


class Place:
    """An appliance's parts without its ports."""

    def __init__(self, dist: Path) -> None:
        self.snapshot = snapshot_of(dist)
        gpus, limits = self.snapshot.gpus, Limits()
        self.gateway = Gateway(find_dist().program("remotegpu-gateway"), None, dist / "socket")
        self.workers = Workers(dist / "bin/remotegpu-worker", (), {"PATH": "/usr/bin:/bin"}, gpus)
        self.uids = CountedUids()
        self.processes: list[Any] = []
        self.allocator = GpuLeases([TOTAL_BYTES])
        counters = Counters()
        self.sessions = Sessions(
            gateway=self.gateway,
            workers=self.start,
            groups=LeaseGroups(Cgroups()),
            limits=limits,
            host_memory=HostMemory(1 << 40, 1 << 40, software=True),
            code=CodeCache(0, None),
            grace_seconds=60,
            uids=self.uids,
            counters=counters,
            on_unhealthy=lambda _, __: None,
            unhealthy=lambda _: "",
        )
        self.leases = Leases(gpus, self.allocator, self.gateway, self.sessions, limits, 60, counters)
        self.arrivals = Arrivals(self.leases, self.sessions, self.gateway, self.snapshot)

    async def start(self, session: Session, on_packet: OnPacket) -> Any:
        started = await self.workers.start_on(session.lease.placement.gpus, None, on_packet)
        self.processes.append(started[0].process)
        return started

    def request(self, invitation: str, *session_ids: str, lease: str = "01") -> pb.ReceiveLeaseRequest:
        (gpu,) = self.snapshot.gpus
        device = pb.Device(name=gpu.name, uuid=bytes(16), memory_bytes=SHARE, attributes=gpu.attributes)
        moving = [pb.MovingSession(session_id=each, ticket="03" * 32) for each in session_ids]
        return pb.ReceiveLeaseRequest(
            invitation=invitation,
            driver_version=self.snapshot.driver_version,
            lease_id=lease * 16,
            lease_secret="02" * 32,
            devices=[device],
            sessions=moving,
        )

    async def receive(self, *session_ids: str, lease: str = "01") -> str:
        """Receives a lease and returns its invitation, which is not settled yet."""
        invitation = self.arrivals.invite("alice", "")
        arrival = await self.arrivals.invited(invitation)
        await self.arrivals.receive(arrival, self.request(invitation, *session_ids, lease=lease))
        return invitation

    async def move(self) -> None:
        """The whole move, as the other appliance requests it."""
        invitation = await self.receive(*SESSIONS)
        arrival = await self.arrivals.invited(invitation)
        adopted = [said for _, _, said in arrival.sessions]
        asyncio.get_running_loop().call_later(0.05, _all_adopted, adopted)
        await self.arrivals.settle(arrival, keep=True)

    async def left(self) -> None:
        """Returns when nothing of the move is left here."""
        async with asyncio.timeout(20):
            while not self.is_empty():  # noqa: ASYNC110 (its parts tell nobody)
                await asyncio.sleep(0.01)

    def is_empty(self) -> bool:
        return (
            not self.leases.all()
            and not self.sessions.all()
            and not self.uids.out
            and not self.arrivals.expected
            and self.allocator.gpus[0].leased == 0
            and all(process.returncode is not None for process in self.processes)
        )


def _all_adopted(answers: list[asyncio.Future[Answer | None]]) -> None:
    for each in answers:
        if not each.done():
            each.set_result(Adopted())


@contextlib.asynccontextmanager
async def place(dist: Path) -> AsyncIterator[Place]:
    made = Place(dist)
    yield made
    await made.leases.end_all("the test is over")
    await made.sessions.settled()


class CancelledAt:
    """Awaits something, and cancels its task when it suspends for the `number`th time."""

    def __init__(self, work: Awaitable[None], number: int) -> None:
        self._work = work
        self.left = number

    def __await__(self) -> Generator[Any, Any, None]:
        inner = self._work.__await__()
        answer: Any = None
        while True:
            try:
                waited = inner.send(answer)
            except StopIteration:
                return
            self.left -= 1
            if self.left == 0:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                answer = yield waited
            except BaseException as error:
                try:
                    waited = inner.throw(error)
                except StopIteration:
                    return
                answer = yield waited


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_whoever_leaves_while_it_waits_leaves_nothing(dist: Path) -> None:
    async def leave(number: int) -> bool:
        """Whether the task suspends that often at all."""
        async with place(dist) as here:
            before = open_files()
            move = CancelledAt(here.move(), number)
            task = asyncio.ensure_future(wrapped(move))
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()
                assert move.left > 0, "a caller that leaves is not told that its lease has come"
                assert len(here.leases.all()) == 1 and len(here.sessions.all()) == len(SESSIONS)
                return False
            await here.left()
            assert open_files() <= before, "and no descriptor is left"
            return True

    async def run() -> int:
        number = 1
        while await leave(number):
            number += 1
        return number

    # Each worker starts and reports; then the other appliance says that everything has arrived.
    assert asyncio.run(run()) > 2 * len(SESSIONS) + 1


async def wrapped(work: Awaitable[None]) -> None:
    await work


def test_a_later_lease_of_that_name_stays(dist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes while the watch of the ended lease still runs."""
    monkeypatch.setattr(arrivals_module, "_INVITATION_SECONDS", 0.5)

    async def run() -> None:
        async with place(dist) as here:
            before = await here.arrivals.invited(await here.receive())
            assert before.lease is not None and before.watch is not None
            here.leases.end(before.lease.lease_id, "it stays where it was")
            await here.move()
            await before.watch
            (lease,) = here.leases.all()
            assert lease is not before.lease and not lease.ended
            # The one that was not told of its end releases only its own.
            await here.arrivals.settle(before, keep=False)
            assert here.leases.all() == [lease] and len(here.sessions.all()) == len(SESSIONS)

    asyncio.run(run())


def test_a_lease_of_which_a_session_has_ended_is_not_kept(dist: Path) -> None:
    async def run() -> None:
        async with place(dist) as here:
            arrival = await here.arrivals.invited(await here.receive(*SESSIONS))
            _all_adopted([said for _, _, said in arrival.sessions])
            here.processes[0].kill()
            async with asyncio.timeout(20):
                while here.sessions.find(SESSIONS[0]):  # noqa: ASYNC110 (its parts tell nobody)
                    await asyncio.sleep(0.01)
            with pytest.raises(RefusalError, match="a session of it has ended"):
                await here.arrivals.settle(arrival, keep=True)
            await here.left()

    asyncio.run(run())


@pytest.mark.parametrize("after", ["invited", "received", "one worker is killed"])
def test_an_appliance_that_is_gone_after_any_packet_leaves_nothing(
    dist: Path, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    monkeypatch.setattr(arrivals_module, "_INVITATION_SECONDS", 0.2)
    monkeypatch.setattr("remotegpu.appliance.sessions.sessions._CONNECT_SECONDS", 0.3)

    async def run() -> None:
        async with place(dist) as here:
            if after == "invited":
                here.arrivals.invite("alice", "")
            else:
                await here.receive(*SESSIONS)
            if after == "one worker is killed":
                here.processes[0].kill()
            assert not here.is_empty()
            await here.left()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda asked: asked.devices[0].ClearField("uuid"), "UUID"),
        (lambda asked: setattr(asked.devices[0], "pci_bus", 256), "PCI"),
        (lambda asked: setattr(asked.devices[0], "memory_bytes", 0), "exactly one"),
        (lambda asked: setattr(asked.devices[0], "memory_bytes", 1 << 62), "NoRoom"),
        (lambda asked: setattr(asked, "compute_milli", 1 << 31), "of a GPU's time"),
        (lambda asked: setattr(asked, "lease_id", "../" * 10 + "ab"), "right name"),
        (lambda asked: setattr(asked.sessions[0], "pod", "a\x1b[2J"), "pod"),
        (lambda asked: setattr(asked.sessions[0], "ticket", "03" * 4096), "a ticket has no"),
        (lambda asked: asked.devices.extend([asked.devices[0]] * 2000), "2001 GPUs"),
        (lambda asked: asked.ClearField("devices"), "UnequalShares"),
        (lambda asked: asked.sessions.extend([asked.sessions[0]]), "one name"),
        (lambda asked: setattr(asked, "driver_version", 1), "OtherDriver"),
        (lambda asked: asked.devices[0].attributes.update({1: 7}), "OtherGpuModel"),
    ],
)
def test_what_no_appliance_sends_is_refused_and_leaves_nothing(
    dist: Path, monkeypatch: pytest.MonkeyPatch, wrong: Callable[[pb.ReceiveLeaseRequest], Any], says: str
) -> None:
    monkeypatch.setattr(arrivals_module, "_INVITATION_SECONDS", 0.1)

    async def run() -> None:
        async with place(dist) as here:
            invitation = here.arrivals.invite("alice", "")
            asked = here.request(invitation, SESSIONS[0])
            wrong(asked)
            with pytest.raises(RefusalError, match=says) as refused:
                await here.arrivals.receive(await here.arrivals.invited(invitation), asked)
            assert refused.value.message.isprintable() and len(refused.value.message) < 500
            await here.left()

    asyncio.run(run())


def test_a_session_of_a_name_that_lives_is_not_taken_twice(dist: Path) -> None:
    """Two leases that move here at once name the same session: the second of them is refused, in either order."""

    async def run() -> None:
        async with place(dist) as here:
            first, second = SESSIONS
            both = here.receive(first, second), here.receive(second, lease="04")
            ended = await asyncio.gather(*both, return_exceptions=True)
            refused = [each for each in ended if isinstance(each, RefusalError)]
            assert len(refused) == 1 and "of this name" in refused[0].message, ended
            (kept,) = (each for each in ended if isinstance(each, str))
            await here.arrivals.settle(await here.arrivals.invited(kept), keep=False)
            await here.left()

    asyncio.run(run())


def test_a_lease_is_not_settled_while_its_sessions_are_made(dist: Path) -> None:
    async def run() -> None:
        async with place(dist) as here:
            invitation = here.arrivals.invite("alice", "")
            arrival = await here.arrivals.invited(invitation)
            receiving = asyncio.create_task(here.arrivals.receive(arrival, here.request(invitation, *SESSIONS)))
            while not here.sessions.all():  # noqa: ASYNC110 (they tell nobody)
                await asyncio.sleep(0)
            for keep in (True, False):
                with pytest.raises(RefusalError, match="still being made"):
                    await here.arrivals.settle(arrival, keep=keep)
            await receiving
            await here.arrivals.settle(arrival, keep=False)
            await here.left()

    asyncio.run(run())


def test_a_lease_that_ends_meanwhile_opens_no_session(dist: Path) -> None:
    async def run() -> None:
        async with place(dist) as here:
            invitation = await here.receive()
            (lease,) = here.leases.all()
            here.leases.end(lease.lease_id, "closed by its holder")
            with pytest.raises(SessionRefusedError, match="has ended"):
                await here.sessions.open(lease, 1, "late")
            with pytest.raises(RefusalError, match="NotArrived"):
                await here.arrivals.settle(await here.arrivals.invited(invitation), keep=True)
            await here.left()

    asyncio.run(run())


def test_without_descriptors_no_session_opens_and_nothing_of_it_stays(dist: Path) -> None:
    """The process has reached its limit of open files."""

    async def run() -> None:
        async with place(dist) as here:
            await here.receive()
            (lease,) = here.leases.all()
            held = []
            with contextlib.suppress(OSError):
                while True:
                    held.append(os.dup(0))
            try:
                with pytest.raises(SessionRefusedError, match="open files"):
                    await here.sessions.open(lease, 1, "without")
                assert not here.sessions.all() and not here.uids.out
            finally:
                for each in held:
                    os.close(each)
            session, _ = await here.sessions.open(lease, 1, "with")
            assert session.session_id in lease.sessions

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
    try:
        asyncio.run(run())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
