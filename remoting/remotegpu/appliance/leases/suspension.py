"""Suspends and resumes leases.

The GPU memory of sessions is saved in images, and other leases can use the share. Contexts, code and addresses stay, so
the bytes that the driver needs for them stay charged to the lease.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Final

import grpc

from remotegpu.api.lines import one_line
from remotegpu.api.quantities import format_bytes
from remotegpu.appliance._generated import worker_orders as orders
from remotegpu.appliance._generated import worker_requests as requests
from remotegpu.appliance.leases.leases import Leases, Waiting
from remotegpu.appliance.machine.images import Images, NoRoomError
from remotegpu.appliance.refusal import RefusalError, refused
from remotegpu.appliance.sessions.budgets import tenant_of
from remotegpu.appliance.sessions.sessions import DRAIN_SECONDS, Sessions
from remotegpu.appliance.sessions.state import Lease, Session, Suspended

_log = logging.getLogger(__name__)

_TELL_SECONDS: Final = 1.0
_AGAIN_SECONDS: Final = 5.0
_MOST_REASON: Final = 500

# A number of bytes in images.
Bytes = int


class Suspensions:
    def __init__(self, leases: Leases, sessions: Sessions, images: Images) -> None:
        self._leases = leases
        self._sessions = sessions
        self._images = images
        # The running operation of each lease.
        self._work: dict[str, asyncio.Task[Bytes]] = {}
        # For each lease of `want`: the reason to suspend it, or "" to resume it; and the task that retries.
        self._wanted: dict[str, str] = {}
        self._strivers: dict[str, asyncio.Task[None]] = {}

    def want(self, lease: Lease, reason: str) -> None:
        """Suspends a lease, or resumes it if `reason` is empty. Retries in the background until it succeeds."""
        lease_id = lease.lease_id
        if lease_id in self._strivers:
            self._wanted[lease_id] = reason
        elif bool(reason) != (lease.suspended is not None):
            self._wanted[lease_id] = reason
            self._strivers[lease_id] = asyncio.create_task(self._strive(lease))

    async def _strive(self, lease: Lease) -> None:
        lease_id = lease.lease_id
        while self._leases.by_id(lease_id) is lease:
            reason = self._wanted[lease_id]
            if bool(reason) == (lease.suspended is not None):
                break
            try:
                async for _ in self.suspend(lease, reason) if reason else self.resume(lease):
                    pass
            except RefusalError as refusal:
                lease.problem = refusal.message
                await asyncio.sleep(_AGAIN_SECONDS)
        lease.problem = ""
        del self._wanted[lease_id], self._strivers[lease_id]

    async def suspend(self, lease: Lease, reason: str) -> AsyncIterator[Waiting | Bytes]:
        """Suspends a lease. Yields its progress once a second, and at last the number of saved bytes.

        Continues if the caller leaves. Raises RefusalError, and then leaves the lease as it was.
        """
        if lease.suspended is not None and lease.lease_id not in self._work:
            yield lease.suspended.bytes
            return
        async for event in self.follow(lease, self._suspend(lease, reason), "its work completes and is copied"):
            yield event

    async def resume(self, lease: Lease) -> AsyncIterator[Waiting | Bytes]:
        """Resumes a lease. Yields its progress once a second, and at last the number of restored bytes.

        Continues if the caller leaves. Raises RefusalError; then the lease stays suspended, unless it has ended.
        """
        if lease.suspended is None and lease.lease_id not in self._work:
            yield 0
            return
        async for event in self.follow(lease, self._resume(lease), "its memory is copied back"):
            yield event

    async def follow(
        self, lease: Lease, work: Coroutine[None, None, Bytes], doing: str
    ) -> AsyncIterator[Waiting | Bytes]:
        """Runs `work` as the only operation on a lease. Yields its progress and its result. Raises RefusalError."""
        if lease.lease_id in self._work:
            work.close()
            raise refused("it is being suspended, resumed or moved already; wait until that is done")
        task = self._work[lease.lease_id] = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._work.pop(lease.lease_id, None))
        since = time.monotonic()
        while not (await asyncio.wait({task}, timeout=_TELL_SECONDS))[0]:
            reason = self._leases.waits(lease.lease_id) or doing
            yield Waiting(reason, 0, time.monotonic() - since)
        yield task.result()

    async def _suspend(self, lease: Lease, reason: str) -> Bytes:
        lease.running.clear()
        try:
            saved = await self._save_all(lease, reason)
        except NoRoomError as error:
            lease.running.set()
            raise RefusalError(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)) from None
        except BaseException:
            lease.running.set()
            raise
        kept = [sum(numbers) for numbers in zip(*(session.kept for session in lease.sessions.values()), strict=True)]
        sizes = lease.placement.sizes
        lease.suspended = Suspended(reason, saved, tuple(map(min, kept or (0,) * len(sizes), sizes)))
        lease.problem = ""
        self._leases.lend(lease, lease.suspended.kept)
        _log.info("lease %s is suspended (%s): %s saved", lease.lease_id[:8], reason, format_bytes(saved))
        return saved

    async def _save_all(self, lease: Lease, reason: str) -> Bytes:
        workers = await self.workers(lease)
        try:
            for session in workers:
                session.image = await asyncio.to_thread(self._images.create, session.granted_bytes, tenant_of(lease))
        except BaseException:
            for session in workers:
                _drop(session)
            raise
        answers = await asyncio.gather(*(self._save(session, reason) for session in workers))
        if refusals := [answer for answer in answers if answer]:
            await asyncio.gather(*(self._restore(session) for session in workers if session.image is not None))
            raise refused(f"{refusals[0]}; its programs go on")
        return sum(session.image.bytes for session in workers if session.image is not None)

    async def workers(self, lease: Lease) -> list[Session]:
        """Waits for sessions that are being opened. Returns the lease's sessions with workers. Raises RefusalError."""
        await asyncio.gather(*(session.connected.wait() for session in list(lease.sessions.values())))
        living = [session for session in lease.sessions.values() if not session.ended]
        for session in living:
            if session.on_gpu and session.process is not None and session.process.kind != "worker":
                raise refused("Offload: a session of offload uses the GPU itself (exclusive or direct)")
        return [session for session in living if session.process is not None and session.process.kind == "worker"]

    async def _save(self, session: Session, reason: str) -> str:
        """Saves a session. Returns the reason if that failed; empty if it succeeded or the session has ended."""
        image = session.image
        # A session that ended has closed its image.
        if image is None or image.closed:
            return ""
        order = orders.suspend(reason=reason, seconds=DRAIN_SECONDS)
        fds, size = [image.file.fileno()], image.bytes
        answer = await self._sessions.ask(session, order, fds, size=size, seconds=DRAIN_SECONDS)
        match answer:
            case requests.Suspended(size, kept) if not image.closed:
                image.trim(size)
                # A worker may be under its tenant's control, and name fewer or more devices.
                session.kept = (*kept, *([0] * len(session.lease.quotas)))[: len(session.lease.quotas)]
                return ""
            case requests.NotSuspended(why):
                _drop(session)
                return one_line(why, _MOST_REASON)
            case _:
                _drop(session)
                return ""

    async def _resume(self, lease: Lease) -> Bytes:
        if not await self._leases.reclaim(lease):
            raise refused("the lease has ended")
        waiting = [session for session in lease.sessions.values() if session.image is not None]
        saved = sum(session.image.bytes for session in waiting if session.image is not None)
        failures = [why for why in await asyncio.gather(*(self._restore(session) for session in waiting)) if why]
        if failures:
            raise refused(f"{failures[0]}; its share is held: resume it again, or end its programs")
        lease.suspended, lease.problem = None, ""
        lease.running.set()
        _log.info("lease %s is resumed: %s brought back", lease.lease_id[:8], format_bytes(saved))
        return saved

    async def _restore(self, session: Session) -> str:
        """Restores a session. Returns the reason if that failed; empty if it succeeded or the session has ended."""
        image = session.image
        if image is None:
            return ""
        answer = await self._sessions.ask(session, orders.resume(), size=image.bytes)
        if isinstance(answer, requests.NotResumed):
            return one_line(answer.reason, _MOST_REASON)
        _drop(session)
        return ""


def _drop(session: Session) -> None:
    if session.image is not None:
        session.image.close()
        session.image = None
    session.kept = (0,) * len(session.lease.quotas)
