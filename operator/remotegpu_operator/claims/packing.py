"""Packs pools: moves claims one after the other so that fewer GPUs are in use, on request and by schedule.

All state is in the pool's status. A move counts there before it begins, so another process can continue.
"""

import asyncio
import datetime
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from remotegpu.api.claims import Allocation, GPUClaim
from remotegpu.api.conditions import timestamp
from remotegpu.api.modes import default_sessions_per_gpu
from remotegpu.api.pools import GPUPool
from remotegpu.api.schedules import FAILED, MOVING, PackMove, PackPhase, PackStatus, due
from remotegpu_operator import metrics
from remotegpu_operator.allocation import About, Allocator, PackingState
from remotegpu_operator.allocation.packing import Plan, Step
from remotegpu_operator.builders import packing as builders
from remotegpu_operator.claims.moves import Moves

_log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0
_STORED_SECONDS: Final = 0.1
_AGAIN_SECONDS: Final = 30.0

# Reports a step of a pool: reason, message, and whether it is a warning.
Tell = Callable[[GPUPool, str, str, bool], None]


class _GoneError(Exception):
    """Raised if the pool was deleted. Another one may have its name."""


class Packing:
    def __init__(
        self,
        claims: Mapping[str, GPUClaim],
        pools: Mapping[str, GPUPool],
        allocator: Allocator,
        moves: Moves,
        changed: Callable[[], None],
        tell: Tell,
    ) -> None:
        """`claims` by uid and `pools` by name are live mappings. `changed` is called for a pool's new status."""
        self._claims = claims
        self._pools = pools
        self._allocator = allocator
        self._moves = moves
        self._changed = changed
        self._tell = tell
        # By the pool's uid: newer than what the API server has, or the same.
        self._statuses: dict[str, PackStatus] = {}
        # By appliance: the number of sessions of each claim, by uid.
        self._sessions: dict[str, Mapping[str, int]] = {}

    def told(self, appliance: str, sessions: Mapping[str, int]) -> None:
        """Stores an appliance's report on the sessions of claims."""
        if sessions:
            self._sessions[appliance] = sessions
        else:
            self._sessions.pop(appliance, None)

    def status(self, pool: GPUPool) -> PackStatus | None:
        """Returns the status that the pool is to have."""
        return self._statuses.get(pool.uid, pool.status.pack)

    async def follow(self) -> None:
        """Packs pools when a request or a schedule asks for it. Never returns."""
        running: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                pools = {pool.uid: pool for pool in self._pools.values()}
                self._statuses = {uid: status for uid, status in self._statuses.items() if uid in pools}
                running = {uid: task for uid, task in running.items() if not task.done()}
                for uid in [uid for uid, pool in pools.items() if uid not in running and self._is_due(pool)]:
                    running[uid] = group.create_task(self._pack(uid))
                await asyncio.sleep(_LOOK_SECONDS)

    def _is_due(self, pool: GPUPool) -> bool:
        status = self._status(pool)
        runs = status.phase is PackPhase.MOVING
        return runs or builders.asked(pool, status) or due(pool.spec.pack, status.started, _now())

    def _status(self, pool: GPUPool) -> PackStatus:
        return self.status(pool) or PackStatus()

    async def _pack(self, uid: str) -> None:
        try:
            pool = self._pool(uid)
            before = self._status(pool)
            if before.phase is PackPhase.MOVING:
                _log.info("pool %s: packing continues", pool.name)
                await self._begun_before(uid, before)
            else:
                asked = builders.asked(pool, before)
                only = asked and builders.dry(pool.pack_request)
                plan, state = await self._plan(uid, replace(before, failed=()) if asked else before)
                if state is None:
                    return
                counts, moves, stays = (plan.before, plan.after), self._moves_of(plan.steps), self._named(plan.stays)
                stamp = timestamp(_now())
                status = builders.planned(
                    before, pool.pack_request, counts, moves, stays, stamp, only=only, scheduled=not asked
                )
                await self._store(uid, status)
                if only:
                    return
            await self._carry_out(uid)
        except _GoneError:
            _log.info("a pool was deleted while it was packed")
        except Exception:
            metrics.RECONCILE_ERRORS.labels("packing").inc()
            _log.exception("a pool is packed again in %d s", _AGAIN_SECONDS)
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _begun_before(self, uid: str, status: PackStatus) -> None:
        """Waits for the end of the move that another process began, and stores how it ended."""
        move = next((each for each in status.moves if each.result == MOVING), None)
        if move is None:
            return
        # A claim that was made since then is another one of that name.
        began = max(status.recent, default="")
        while True:
            named = (each for each in self._claims.values() if each.key == move.claim)
            claim = next((each for each in named if each.created <= began), None)
            if claim is None or claim.status.move is None:
                break
            await asyncio.sleep(_LOOK_SECONDS)
            self._pool(uid)
        if claim is None:
            await self._store(uid, builders.not_begun(status))
            return
        arrived = any(each.appliance == move.target for each in claim.status.allocations)
        why = "" if arrived else "it is not there, and the operator that began it has ended"
        await self._store(uid, builders.ended(status, claim.uid, why, timestamp(_now())))

    async def _carry_out(self, uid: str) -> None:
        """Plans and moves claims, one after the other, until no plan has a move or the packing is not wanted any more.

        Each step is checked against the present state, and the rest is planned anew if it does not empty a GPU there.
        """
        # By uid: why a move was not begun. It is not tried again.
        refused: dict[str, str] = {}
        while True:
            status = self._status(self._pool(uid))
            plan, planned = await self._plan(uid, status, refused)
            if planned is None or not plan.steps or not self._wanted(uid):
                break
            for index in range(len(plan.steps)):
                steps = plan.steps[index:]
                state = self._still(uid, planned, steps, refused)
                if state is None or not await self._step(uid, plan, steps, state, refused):
                    break
            # The state may change so fast that no plan is begun.
            await asyncio.sleep(_LOOK_SECONDS)
        pool = self._pool(uid)
        status = builders.done(
            self._status(pool), plan.before, self._named(plan.stays), wanted=not plan.steps or self._wanted(uid)
        )
        await self._store(uid, status)
        if status.moves:
            self._tell(pool, "Packed", status.message, any(each.result == FAILED for each in status.moves))

    def _wanted(self, uid: str) -> bool:
        pool = self._pool(uid)
        return builders.wanted(pool, self._status(pool), _now())

    def _still(
        self, uid: str, planned: PackingState, steps: Sequence[Step], refused: Mapping[str, str]
    ) -> PackingState | None:
        """Returns the present state if `steps`, the rest of a plan, are still to be made; else None."""
        pool, now = self._pool(uid), _now()
        status = self._status(pool)
        if not self._wanted(uid) or builders.left(pool, status, now) < len(steps):
            return None
        state, quiet = self._state(pool, status, refused), float(pool.spec.pack.leave_alone)
        holds = state is not None and state.holds(planned, steps, now=now.timestamp(), quiet=quiet)
        return state if holds else None

    async def _step(
        self, uid: str, plan: Plan, steps: Sequence[Step], state: PackingState, refused: dict[str, str]
    ) -> bool:
        """Makes the first of `steps`. Returns whether the claim has moved; adds it to `refused` if it was not begun."""
        step, (move, *more) = steps[0], self._moves_of(steps)
        pool, now = self._pool(uid), _now()
        status = self._status(pool)
        status = replace(status, recent=builders.within_an_hour(status.recent, now))
        await self._store(uid, builders.moving(status, move, tuple(more), timestamp(now)))
        why, begun = await self._carry(uid, step, state.allocations(step), f"pool {pool.name} is packed")
        status = self._status(self._pool(uid))
        if why and (not begun or step.uid not in self._claims):
            refused[step.uid] = f"its move was not begun: {why}"
            await self._store(uid, builders.not_begun(status))
            return False
        await self._store(uid, builders.ended(status, step.uid, why, timestamp(_now())))
        if why:
            said = f"claim {move.claim} stays on {move.source}, and the rest is planned anew: {why}"
            self._tell(self._pool(uid), "NotPacked", said, True)
        else:
            said = f"claim {move.claim} has moved from {move.source} to {move.target}: {plan.after} of {plan.before}"
            self._tell(self._pool(uid), "Packing", f"{said} GPUs stay in use", False)
        return not why

    async def _carry(self, uid: str, step: Step, to: tuple[Allocation, ...], why: str) -> tuple[str, bool]:
        """Moves a claim. Returns "" when it has moved, or why it stays, and whether the move was begun."""
        moving = asyncio.ensure_future(self._moves.order(step.uid, step.source, to, why))
        while not (await asyncio.wait({moving}, timeout=_LOOK_SECONDS))[0]:
            claim = self._claims.get(step.uid)
            if claim is None:
                self._moves.withdraw(step.uid, "the claim is gone")
            elif all(pool.uid != uid for pool in self._pools.values()):
                self._moves.withdraw(step.uid, "its pool is gone")
            elif claim.status.move is None and (stays := builders.stays(claim)):
                self._moves.withdraw(step.uid, stays)
        return moving.result()

    async def _plan(
        self, uid: str, status: PackStatus, refused: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[Plan, PackingState | None]:
        """Plans with what is left of the hour's moves. The claims `refused` stay."""
        pool, now = self._pool(uid), _now()
        if (state := self._state(pool, status, refused)) is None:
            return Plan((), 0, 0, {}), None
        most, quiet = builders.left(pool, status, now), float(pool.spec.pack.leave_alone)
        # A large pool takes a second, in which the event loop serves others.
        return await asyncio.to_thread(state.plan, most=most, now=now.timestamp(), quiet=quiet), state

    def _state(self, pool: GPUPool, status: PackStatus, refused: Mapping[str, str]) -> PackingState | None:
        """Returns the pool's present state. A claim whose move failed, or that has moved in this packing, stays."""
        failed, arrived = builders.left_alone(status, _now()), builders.arrived(status)

        def about(uid: str) -> About:
            if (claim := self._claims.get(uid)) is None:
                return builders.about(None, 0, "")
            places = {each.appliance for each in claim.status.allocations}
            sessions = max((self._sessions.get(each, {}).get(uid, 0) for each in places), default=0)
            has_failed = builders.HAS_FAILED if uid in failed else ""
            has_moved = builders.HAS_MOVED if claim.key in arrived else ""
            return builders.about(claim, sessions, refused.get(uid, "") or has_failed or has_moved)

        most = pool.spec.limits.sessions_per_gpu or default_sessions_per_gpu(pool.spec.backend)
        return self._allocator.packing(pool.name, most, about)

    def _pool(self, uid: str) -> GPUPool:
        """Returns the present state of a pool. Raises _GoneError."""
        if (pool := next((each for each in self._pools.values() if each.uid == uid), None)) is None:
            raise _GoneError(uid)
        return pool

    def _moves_of(self, steps: Iterable[Step]) -> tuple[PackMove, ...]:
        return tuple(PackMove(self._name(step.uid), step.source, step.target) for step in steps)

    def _name(self, uid: str) -> str:
        claim = self._claims.get(uid)
        return claim.key if claim is not None else uid

    def _named(self, stays: Mapping[str, str]) -> dict[str, str]:
        return {self._name(uid): why for uid, why in stays.items()}

    async def _store(self, uid: str, status: PackStatus) -> None:
        """Waits until the status is stored. Raises _GoneError."""
        self._statuses[uid] = status
        while self._pool(uid).status.pack != status:
            self._changed()
            await asyncio.sleep(_STORED_SECONDS)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
