"""Memory that sessions are returning to their lease, and requests that wait for it.

A session overwrites returned memory before it frees it, and a session that ends returns all its memory. Both take time,
but are known in advance. So free memory includes such memory, and a request that needs it waits.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from io import FileIO
from operator import itemgetter
from typing import Final, NamedTuple

from remotegpu.appliance._generated import worker_orders as orders
from remotegpu.appliance.sessions.clients import Client
from remotegpu.appliance.sessions.state import Lease, Session

_log = logging.getLogger(__name__)

# The longest time that a request waits for memory that is being returned.
_RETURN_SECONDS: Final = 10.0
# The longest wait for a worker's report. A worker answers at once, unless it is stopped.
_SETTLE_SECONDS: Final = 1.0
# A session without a connection may be ended after this time if its lease is short of memory or places. The time is not
# zero: after a network failure, the first client that reconnects must not end the others.
GIVE_WAY_SECONDS: Final = 3.0

_ids = itertools.count(1)


class Got(NamedTuple):
    """The result of a request for memory."""

    size: int
    inherited: int  # the part of `size` that another session has handed on
    line: str  # an error for people if memory was not returned in time; else empty


def is_going(session: Session) -> bool:
    """Whether the session is ending, so that its memory will be returned."""
    return session.ended or session.leaving


def is_lost(session: Session) -> bool:
    """Whether the session is alive but has no connection."""
    return session.lost_since is not None and not is_going(session)


def gives_way_in(lost: Session, to: Client | None) -> float:
    """Returns the seconds until a session without a connection may be ended in favour of the client `to`.

    They are 0 if its client has surely gone: it closed a local socket, its process has ended, or it is `to` itself
    after exec.
    """
    assert lost.lost_since is not None
    if lost.hung_up or (lost.client is not None and (lost.client.ended or lost.client.is_same(to))):
        return 0.0
    return lost.lost_since + GIVE_WAY_SECONDS - time.monotonic()


def coming_back(lease: Lease, device: int) -> int:
    """Returns the bytes of a share on a device that sessions are returning."""
    quota = lease.quotas[device]
    going = {session.session_id for session in list(lease.sessions.values()) if is_going(session)}
    all_of_those = sum(size for name, size in list(quota.granted.items()) if name in going)
    return all_of_those + sum(size for name, size in list(quota.leaving.items()) if name not in going)


def in_use(lease: Lease, device: int) -> int:
    """Returns the bytes of a share on a device that programs use."""
    return lease.quotas[device].used - coming_back(lease, device)


def free_for(session: Session, device: int) -> int:
    """Returns the bytes that a session can get: free bytes, bytes being returned, and bytes of lost sessions."""
    lease = session.lease
    leaving = lease.quotas[device].leaving
    lost = (each.used_on(device) - leaving.get(each.session_id, 0) for each in _others(session, is_lost))
    return lease.quotas[device].free + coming_back(lease, device) + sum(lost)


def _others(session: Session, which: Callable[[Session], bool]) -> list[Session]:
    return [other for other in session.lease.sessions.values() if other is not session and which(other)]


class Returns:
    """Grants memory to sessions, and lets requests wait for memory that is being returned."""

    def __init__(self, give_way: Callable[[Session], Awaitable[None]]) -> None:
        """Starts without requests. `give_way` must end a session that has no connection."""
        self._give_way = give_way
        self._ending: set[asyncio.Future[None]] = set()
        self.waiting = 0

    async def grant(self, session: Session, device: int, least: int, want: int, *, maps: bool = False) -> Got:
        """Grants `least` to `want` bytes as soon as they are free; 0 bytes if not enough will be returned in time.

        With `maps` the session also accepts memory that another session hands on.
        """
        self.waiting += 1
        try:
            size, line = await self._grant(session, device, least, want, maps=maps)
        finally:
            self.waiting -= 1
            _want_no_more(session, device)
        inherited = session.inherited.pop(device, 0)
        return Got(size + inherited, inherited, line)

    async def _grant(self, session: Session, device: int, least: int, want: int, *, maps: bool) -> tuple[int, str]:
        lease, until = session.lease, time.monotonic() + _RETURN_SECONDS
        quota = lease.quotas[device]
        # Other programs may have ended or freed memory, and their workers may not have reported it yet.
        await self.settle(lease, besides=session)
        while not session.ended:
            if session.inherited.get(device, 0) >= least:
                return 0, ""
            if size := quota.grant(session.session_id, least, want):
                return size, ""
            if least > free_for(session, device):
                return 0, ""
            left = until - time.monotonic()
            if left <= 0:
                return 0, self._too_late(session, device)
            if maps:
                _want(session, device, least)
            if least > quota.free + coming_back(lease, device):
                left = min(left, self._have_one_give_way(session, device))
            await changed(lease, left)
        return 0, ""

    async def settle(self, lease: Lease, besides: Session | None = None) -> None:
        """Makes the workers of a lease report freed memory and ended clients. Waits at most 1 s for the reports."""
        asked = list(self._ask(lease, besides))
        if asked:
            await asyncio.wait(asked, timeout=_SETTLE_SECONDS)

    def _ask(self, lease: Lease, besides: Session | None) -> Iterator[asyncio.Future[None]]:
        for other in lease.sessions.values():
            if other is besides or is_going(other) or other.process is None or not other.granted_bytes:
                continue
            number = next(_ids)
            other.settling[number] = asyncio.get_running_loop().create_future()
            other.process.send(orders.settle(id=number))
            yield other.settling[number]

    def _have_one_give_way(self, session: Session, device: int) -> float:
        """Ends the lost session that may be ended first, if its time is over.

        Returns the seconds to wait before the next call.
        """
        lost = _others(session, lambda other: is_lost(other) and other.used_on(device) > 0)
        left, first = min(((gives_way_in(other, session.client), other) for other in lost), key=itemgetter(0))
        if left > 0:
            return left
        ending = asyncio.ensure_future(self._give_way(first))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        return _RETURN_SECONDS

    def _too_late(self, session: Session, device: int) -> str:
        lease = session.lease
        holders = [
            f"pid {other.client_pid} ({'ends' if is_going(other) else 'overwrites what it freed'})"
            for other in lease.sessions.values()
            if is_going(other) or lease.quotas[device].leaving.get(other.session_id)
        ]
        line = (
            f"memory of the share did not come back within {_RETURN_SECONDS:.0f} s from "
            f"{', '.join(holders) or 'its other processes'}: a kernel may keep the GPU from overwriting it; "
            "the program gets CUDA_ERROR_OUT_OF_MEMORY and may try again"
        )
        _log.warning("session %s: %s", session.session_id[:8], line)
        return line


def _want(session: Session, device: int, least: int) -> None:
    """Asks one session that is ending or has freed memory to hand on `least` bytes to this session.

    A living session without a fitting piece overwrites its freed memory at once instead. So does one that waits itself.
    """
    ending = _others(session, lambda other: other.offers and other.used_on(device) >= least)
    living = _others(session, lambda other: device in other.offers_on and not is_going(other))
    if any(one.heir == (session, device) for one in ending + living):
        return
    for other in ending + living:
        if other.heir is None and other.process is not None:
            other.offers_on.discard(device)
            other.heir = (session, device)
            other.process.send(orders.hand_on(device=device, least=least))
            return


def _want_no_more(session: Session, device: int) -> None:
    for other in session.lease.sessions.values():
        if other.heir == (session, device):
            other.heir = None


def let_go(session: Session) -> None:
    """Ends a session that only waits to hand on its memory, because another session needs its place."""
    if session.offers and session.heir is None and session.process is not None:
        session.offers = False
        session.process.send(orders.end(code=0, reason="its place is needed"))


def hand_on(session: Session, device: int, size: int, file: FileIO | None, *, zeroed: bool) -> None:
    """Hands on memory of a session that is ending, or that has freed it, to its heir, if the heir still wants it.

    `zeroed` says that the session has overwritten the memory; otherwise the heir does so.
    """
    heir, session.heir = session.heir, None
    assert session.process is not None
    taken = False
    if heir is not None and heir[1] == device and file is not None:
        to, quota = heir[0], session.lease.quotas[device]
        wants = not is_going(to) and to.process is not None
        # A session that does not end hands on memory that it has freed.
        lives, names = not session.offers, (session.session_id, to.session_id)
        if wants and to.process is not None and (taken := quota.move(*names, size, leaves=lives)):
            to.inherited[device] = to.inherited.get(device, 0) + size
            to.process.send(orders.inherit(device=device, size=size, zeroed=zeroed), [file.fileno()])
    session.process.send(orders.handed_on(taken=taken))
    note_change(session.lease)


async def changed(lease: Lease, seconds: float) -> None:
    """Waits until the memory or the sessions of a lease change, at most `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            await lease.changed.wait()
    except TimeoutError:
        return


def note_change(lease: Lease) -> None:
    """Wakes all that wait in `changed` for this lease."""
    lease.changed.set()
    lease.changed = asyncio.Event()


def settled(session: Session, number: int) -> None:
    """Completes the `settle` request `number`: the worker has reported all that its client had done by then."""
    answer = session.settling.pop(number, None)
    if answer is not None and not answer.done():
        answer.set_result(None)


def all_settled(session: Session) -> None:
    """Completes all `settle` requests to a session that is ending."""
    for number in list(session.settling):
        settled(session, number)
