"""Packs pools: moves claims one after the other so that fewer GPUs are in use, on request and by schedule.

All state is in the pool's status. A move counts there before it begins, so another process can continue.
"""

import asyncio
import datetime
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from remotegpu.api.claims import Allocation, GPUClaim
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
    """Raised if the pool was deleted."""


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
        self._sessions[appliance] = sessions

    def status(self, pool: GPUPool) -> PackStatus | None:
        """Returns the status that the pool is to have."""
        return self._statuses.get(pool.uid, pool.status.pack)

    async def follow(self) -> None:
        """Packs pools when a request or a schedule asks for it. Never returns."""
        running: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                uids = {pool.uid for pool in self._pools.values()}
                self._statuses = {uid: status for uid, status in self._statuses.items() if uid in uids}
                running = {name: task for name, task in running.items() if not task.done()}
                for name in [each for each in self._pools if each not in running and self._is_due(each)]:
                    running[name] = group.create_task(self._pack(name))
                await asyncio.sleep(_LOOK_SECONDS)

    def _is_due(self, name: str) -> bool:
        pool, now = self._pools[name], _now()
        status = self.status(pool) or PackStatus()
        asked = _asked(pool, status)
        return asked or status.phase is PackPhase.MOVING or due(pool.spec.pack, status.started, now)

    async def _pack(self, name: str) -> None:
        try:
            pool = self._pool(name)
            before = self.status(pool) or PackStatus()
            asked, resumed = _asked(pool, before), before.phase is PackPhase.MOVING
            only = asked and builders.dry(pool.pack_request)
            if resumed:
                _log.info("pool %s: packing continues", name)
                await self._begun_before(name, before)
            plan, state = await self._plan(name)
            if not resumed and state is not None:
                counts = plan.before, plan.after
                moves, stays = self._moves_of(plan), self._named(plan.stays)
                status = builders.planned(before, pool.pack_request, counts, moves, stays, _stamp(_now()), only=only)
                await self._store(name, status)
                if only:
                    return
            await self._carry_out(name, plan, state, scheduled=not asked and not resumed)
        except _GoneError:
            _log.info("pool %s was deleted while it was packed", name)
        except Exception:
            metrics.RECONCILE_ERRORS.labels("packing").inc()
            _log.exception("pool %s is packed again in %d s", name, _AGAIN_SECONDS)
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _begun_before(self, name: str, status: PackStatus) -> None:
        """Waits for the end of the move that another process began, and stores how it ended."""
        move = next((each for each in status.moves if each.result == MOVING), None)
        if move is None:
            return
        while True:
            claim = next((each for each in self._claims.values() if each.key == move.claim), None)
            if claim is None or claim.status.move is None:
                break
            await asyncio.sleep(_LOOK_SECONDS)
        arrived = claim is not None and any(each.appliance == move.target for each in claim.status.allocations)
        why = "" if arrived else "it is not there, and the operator that began it has ended"
        await self._store(name, builders.ended(status, why))

    async def _carry_out(self, name: str, plan: Plan, state: PackingState | None, *, scheduled: bool) -> None:
        """Makes the moves of a plan, one after the other. A scheduled packing ends with the hours of the schedule."""
        while state is not None and plan.steps and not (scheduled and _is_over(self._pool(name))):
            planned = self._moves_of(plan)
            for index, (step, move) in enumerate(zip(plan.steps, planned, strict=True)):
                if scheduled and _is_over(self._pool(name)):
                    break
                status = self.status(self._pool(name)) or PackStatus()
                now = _now()
                status = replace(status, recent=builders.within_an_hour(status.recent, now))
                await self._store(name, builders.moving(status, move, planned[index + 1 :], _stamp(now)))
                said = f"claim {move.claim} moves from {move.source} to {move.target}: {plan.after} of {plan.before}"
                self._tell(self._pool(name), "Packing", f"{said} GPUs stay in use", False)
                why = await self._carry(step, state.allocations(step), f"pool {name} is packed")
                status = builders.ended(self.status(self._pool(name)) or PackStatus(), why)
                await self._store(name, status)
                if why:
                    said = f"claim {move.claim} stays on {move.source}, and the rest is planned anew: {why}"
                    self._tell(self._pool(name), "NotPacked", said, True)
                    break
            plan, state = await self._plan(name)
        pool = self._pool(name)
        status = builders.done(self.status(pool) or PackStatus(), plan.before, self._named(plan.stays))
        await self._store(name, status)
        if status.moves:
            self._tell(pool, "Packed", status.message, any(each.result == FAILED for each in status.moves))

    async def _carry(self, step: Step, to: tuple[Allocation, ...], why: str) -> str:
        """Moves a claim. Returns "" when it has moved, or why it stays."""
        moving = asyncio.ensure_future(self._moves.order(step.uid, step.source, to, why))
        while not (await asyncio.wait({moving}, timeout=_LOOK_SECONDS))[0]:
            claim = self._claims.get(step.uid)
            if claim is not None and claim.status.move is None and (stays := builders.stays(claim)):
                self._moves.withdraw(step.uid, stays)
        return moving.result()

    async def _plan(self, name: str) -> tuple[Plan, PackingState | None]:
        """Plans with what is left of the hour's moves. A claim whose move failed in this packing stays."""
        pool, now = self._pool(name), _now()
        status = self.status(pool) or PackStatus()
        running = status.phase is PackPhase.MOVING
        failed = {each.claim: f"its move failed: {each.message}" for each in status.moves if each.result == FAILED}
        sessions: dict[str, int] = {}
        for told in self._sessions.values():
            for uid, count in told.items():
                sessions[uid] = max(sessions.get(uid, 0), count)

        def about(uid: str) -> About:
            claim = self._claims.get(uid)
            why = failed.get(claim.key, "") if running and claim is not None else ""
            return builders.about(claim, sessions.get(uid, 0), why)

        most_sessions = pool.spec.limits.sessions_per_gpu or default_sessions_per_gpu(pool.spec.backend)
        state = self._allocator.packing(name, most_sessions, about)
        if state is None:
            return Plan((), 0, 0, {}), None
        left = max(0, pool.spec.pack.moves_per_hour - len(builders.within_an_hour(status.recent, now)))
        # A large pool takes a second, in which the event loop serves others.
        plan = await asyncio.to_thread(
            state.plan, most=left, now=now.timestamp(), quiet=float(pool.spec.pack.leave_alone)
        )
        return plan, state

    def _pool(self, name: str) -> GPUPool:
        """Returns the present state of a pool. Raises _GoneError."""
        if (pool := self._pools.get(name)) is None:
            raise _GoneError(name)
        return pool

    def _moves_of(self, plan: Plan) -> tuple[PackMove, ...]:
        return tuple(PackMove(self._name(step.uid), step.source, step.target) for step in plan.steps)

    def _name(self, uid: str) -> str:
        claim = self._claims.get(uid)
        return claim.key if claim is not None else uid

    def _named(self, stays: Mapping[str, str]) -> dict[str, str]:
        return {self._name(uid): why for uid, why in stays.items()}

    async def _store(self, name: str, status: PackStatus) -> None:
        """Waits until the status is stored. Raises _GoneError."""
        self._statuses[self._pool(name).uid] = status
        while self._pool(name).status.pack != status:
            self._changed()
            await asyncio.sleep(_STORED_SECONDS)


def _is_over(pool: GPUPool) -> bool:
    """Whether the pool has hours for packing, and these have ended."""
    hours = pool.spec.pack.hours
    return hours is not None and not hours.covers(_now())


def _asked(pool: GPUPool, status: PackStatus) -> bool:
    """Whether the pool has a request that was not answered yet."""
    return bool(pool.pack_request) and pool.pack_request != status.request


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _stamp(now: datetime.datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")
