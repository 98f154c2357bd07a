"""Moves claims from one appliance to another while their programs run."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from remotegpu.api.claims import Allocation, ClaimStatus, GPUClaim, Move
from remotegpu.api.pools import ApplianceStatus
from remotegpu_operator.allocation import Allocator, request_of
from remotegpu_operator.builders import moves, packing
from remotegpu_operator.claims.attempts import Attempts

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Order:
    """A move that the claim itself does not ask for. `ended` gets "" when it has moved, or why it stays."""

    source: str
    to: tuple[Allocation, ...]
    why: str
    ended: asyncio.Future[str]
    begun: bool = False

    def is_for(self, move: Move) -> bool:
        places = ([(each.appliance, each.gpu) for each in to] for to in (self.to, move.to))
        return self.source == move.source and next(places) == next(places)

    def end(self, why: str) -> None:
        if not self.ended.done():
            self.ended.set_result(why)


# Moves a claim's lease from one appliance to another. Returns "" on success, or why the move failed.
Carry = Callable[[GPUClaim, str, str], Awaitable[str]]


class Moves:
    """Starts moves of claims and follows them.

    The claim's status has the target before the move begins. The appliances read the target there, and so does an
    operator that starts during the move.
    """

    def __init__(self, allocator: Allocator, priorities: Mapping[str, int], carry: Carry, look: Callable[[str], None]):
        """`priorities` has the value of each PriorityClass. `carry` moves the lease, and `look` queues a claim."""
        self._allocator = allocator
        self._priorities = priorities
        self._carry = carry
        self._look = look
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # By claim: the move that has ended, and why it failed; empty if it succeeded.
        self._ended: dict[str, tuple[Move, str]] = {}
        self._attempts = Attempts(look)
        self._orders: dict[str, _Order] = {}

    async def order(self, uid: str, source: str, to: tuple[Allocation, ...], why: str) -> tuple[str, bool]:
        """Moves what a movable claim has on `source` to `to`.

        Returns "" when it has moved, or why it stays; and whether the move was begun. It is tried once. `why` is added
        to the claim's message.
        """
        order = self._orders[uid] = _Order(source, to, why, asyncio.get_running_loop().create_future())
        self._look(uid)
        try:
            return await order.ended, order.begun
        finally:
            self._orders.pop(uid, None)

    def withdraw(self, uid: str, why: str) -> None:
        """Ends the order for a claim, and tells who ordered it `why`."""
        if (order := self._orders.get(uid)) is not None:
            order.end(why)

    def forget(self, uid: str) -> None:
        """Forgets a claim that is gone, or that does not have to move."""
        self._ended.pop(uid, None)
        self._attempts.forget(uid)
        self.withdraw(uid, "the claim is gone")

    def next(self, claim: GPUClaim, appliances: Mapping[str, ApplianceStatus], now: str) -> ClaimStatus:
        """Begins, continues or ends the move of a claim with a share.

        Holds the GPUs of a new move in the allocator. Returns the next status of the claim.
        """
        if (move := claim.status.move) is not None:
            return self._follow(claim, move, appliances, now)
        source = moves.source(claim, appliances)
        if not source and (order := self._orders.get(claim.uid)) is not None and not order.ended.done():
            return self._begin(claim, order, now)
        if not source:
            self.forget(claim.uid)
            return moves.stays(claim, now)
        if self._attempts.too_early(claim):
            return claim.status
        to = moves.refusal(claim) or self._allocator.elsewhere(claim.uid, source, claim.spec.appliance)
        if isinstance(to, str):
            return self._not_moved(claim, to, now)
        # Forget the result of the same move if it failed before.
        self._ended.pop(claim.uid, None)
        status = moves.moving(claim, source, to, now)
        self._allocator.hold(request_of(claim, self._priorities), status.held)
        return status

    def _begin(self, claim: GPUClaim, order: _Order, now: str) -> ClaimStatus:
        why = packing.stays(claim) or self._allocator.refusal(claim.uid, order.source, order.to)
        if why:
            order.end(why)
            # An attempt whose write had no answer has booked the target.
            if order.begun:
                self._allocator.hold(request_of(claim, self._priorities), claim.status.held)
            return claim.status
        order.begun = True
        self._ended.pop(claim.uid, None)
        status = moves.moving(claim, order.source, order.to, now, order.why)
        self._allocator.hold(request_of(claim, self._priorities), status.held)
        return status

    def _follow(self, claim: GPUClaim, move: Move, appliances: Mapping[str, ApplianceStatus], now: str) -> ClaimStatus:
        ended, why = self._ended.get(claim.uid, (None, ""))
        if ended != move:
            if claim.uid not in self._tasks:
                self._tasks[claim.uid] = asyncio.create_task(self._run(claim, move))
            return claim.status
        # Another move, as off an appliance that drains, does not carry out the order.
        if (order := self._orders.get(claim.uid)) is not None and order.is_for(move):
            order.end(why)
        if why:
            return self._not_moved(claim, why, now)
        return moves.moved(claim, move, appliances, now)

    async def _run(self, claim: GPUClaim, move: Move) -> None:
        since = time.monotonic()
        try:
            why = await self._carry(claim, move.source, move.to[0].appliance)
            self._ended[claim.uid] = move, why
            took = time.monotonic() - since
            to = move.to[0].appliance
            _log.info("claim %s: from %s to %s in %.1f s: %s", claim.key, move.source, to, took, why or "it has moved")
        except Exception as error:
            # The stored result keeps the move from starting again at once.
            _log.exception("claim %s: from %s", claim.key, move.source)
            self._ended[claim.uid] = move, f"the operator failed, see its log: {error!r}"
        finally:
            del self._tasks[claim.uid]
            self._look(claim.uid)

    def _not_moved(self, claim: GPUClaim, why: str, now: str) -> ClaimStatus:
        self._attempts.failed(claim)
        return moves.not_moved(claim, why, now)
