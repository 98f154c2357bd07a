"""The allocator's rules in their simplest form: every event computes everything again, and nothing is cached."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field

from remotegpu.api.claims import Allocation, Reason
from remotegpu.api.pools import AppliancePhase, ApplianceStatus, GpuStatus
from remotegpu_operator.allocation import Request
from remotegpu_operator.allocation.fit import Fit, choose

LEAST = 2 << 20


@dataclass
class World:
    """The state that the API server holds: pools, quotas, claims that wait, and claims with shares."""

    pools: dict[str, list[ApplianceStatus]] = field(default_factory=dict)
    quotas: dict[str, dict[str, int]] = field(default_factory=dict)
    waiting: dict[str, Request] = field(default_factory=dict)
    held: dict[str, tuple[Request, tuple[Allocation, ...]]] = field(default_factory=dict)
    now: datetime.datetime = datetime.datetime(2026, 11, 21, 16, tzinfo=datetime.UTC)

    def used(self, appliance: str, gpu: str) -> int:
        shares = (share for _, shares in self.held.values() for share in shares)
        return sum(share.memory for share in shares if (share.appliance, share.gpu) == (appliance, gpu))

    def waited(self, request: Request) -> float:
        return max(0.0, (self.now - datetime.datetime.fromisoformat(request.created)).total_seconds())

    def has_some(self, namespace: str, gpus: set[tuple[str, str]]) -> bool:
        return any(
            request.namespace == namespace and (share.appliance, share.gpu) in gpus
            for request, shares in self.held.values()
            for share in shares
        )

    def holds_up(self, ahead: Request, gpus: set[tuple[str, str]], behind: Request) -> bool:
        """Half an hour; ten minutes if the namespace already has a share; forty within one namespace, and in all."""
        waited = self.waited(ahead)
        if self.waited(behind) >= 2400:
            return False
        if ahead.namespace == behind.namespace:
            return waited < 2400
        return 600 <= waited < 2400 if self.has_some(ahead.namespace, gpus) else waited < 1800

    def charged(self, namespace: str) -> int:
        return sum(
            share.milli for request, shares in self.held.values() if request.namespace == namespace for share in shares
        )


def settle(world: World) -> tuple[dict[str, tuple[Allocation, ...]], dict[str, Reason]]:
    """The claims that get a share now, and why the others wait. Moves them from `waiting` to `held`."""
    placed: dict[str, tuple[Allocation, ...]] = {}
    while True:
        reasons: dict[str, Reason] = {}
        if not any(_walk(world, pool, placed, reasons) for pool in sorted({r.pool for r in world.waiting.values()})):
            return placed, reasons


def _walk(world: World, pool: str, placed: dict[str, tuple[Allocation, ...]], reasons: dict[str, Reason]) -> bool:
    # The GPUs that each waiting claim reserves against those behind it.
    wanted: list[tuple[Request, set[tuple[str, str]]]] = []
    any_placed = False
    queue = [request for request in world.waiting.values() if request.pool == pool]
    for request in sorted(queue, key=lambda r: (-r.priority, r.created, r.namespace, r.name, r.uid)):
        outcome = _serve(world, request, wanted)
        if isinstance(outcome, Reason):
            reasons[request.uid] = outcome
        else:
            any_placed = True
            placed[request.uid] = outcome
            world.held[request.uid] = (world.waiting.pop(request.uid), outcome)
    return any_placed


def _serve(
    world: World, request: Request, wanted: list[tuple[Request, set[tuple[str, str]]]]
) -> tuple[Allocation, ...] | Reason:
    if request.pool not in world.pools:
        return Reason.NO_SUCH_POOL
    everything = [
        (appliance, gpu)
        for appliance in sorted(world.pools[request.pool], key=lambda a: a.name)
        for gpu in sorted(appliance.gpus, key=lambda g: g.uuid)
    ]
    in_service = [pair for pair in everything if pair[0].phase == AppliancePhase.READY and pair[1].healthy]
    if not in_service:
        return Reason.POOL_NOT_READY
    matching = [(a, g) for a, g in everything if request.model.lower() in g.model.lower()]
    if not matching:
        return Reason.NO_MATCHING_GPU
    sizes = [gpu.memory for _, gpu in matching]
    if not request.ask.memory_bytes and max(sizes) > min(sizes) * 1.1:
        return Reason.MIXED_MEMORY
    count = request.ask.count
    suitable = [(a, g) for a, g in matching if LEAST <= _size(request, g) <= g.shareable]
    if len(suitable) < count:
        too_small = max(_size(request, gpu) for _, gpu in matching) < LEAST
        return Reason.NO_MATCHING_GPU if too_small and len(matching) >= count else Reason.TOO_LARGE
    suitable = [(a, g) for a, g in suitable if a.name not in request.refused_by]
    if len(suitable) < count:
        return Reason.WAITING_FOR_CAPACITY
    if _over(world, request, count * min(_milli(request, gpu) for _, gpu in suitable)):
        return Reason.QUOTA_EXCEEDED
    kept = {gpu for ahead, gpus in wanted for gpu in gpus if world.holds_up(ahead, gpus, request)}
    fits = []
    for index, (appliance, gpu) in enumerate(everything):
        left = gpu.shareable - world.used(appliance.name, gpu.uuid) - _size(request, gpu)
        usable = (appliance, gpu) in suitable and (appliance, gpu) in in_service
        if usable and left >= 0 and (appliance.name, gpu.uuid) not in kept:
            fits.append(Fit(left, appliance.name, index))
    chosen = choose(fits, count, request.placement)
    if chosen is None:
        if sum(pair in in_service for pair in suitable) >= count:
            wanted.append((request, {(a.name, g.uuid) for a, g in suitable}))
        return Reason.WAITING_FOR_CAPACITY
    shares = []
    for index in sorted(fit.slot for fit in chosen):
        appliance, gpu = everything[index]
        size, milli = _size(request, gpu), _milli(request, gpu)
        shares.append(Allocation(appliance.name, appliance.node, gpu.uuid, gpu.model, size, milli))
    return Reason.QUOTA_EXCEEDED if _over(world, request, sum(s.milli for s in shares)) else tuple(shares)


def _size(request: Request, gpu: GpuStatus) -> int:
    return request.ask.memory_bytes or gpu.shareable * request.ask.milli_per_gpu // 1000


def _milli(request: Request, gpu: GpuStatus) -> int:
    if not request.ask.memory_bytes:
        return request.ask.milli_per_gpu
    milli = 0
    while gpu.shareable * milli < request.ask.memory_bytes * 1000:
        milli += 1
    return milli


def _over(world: World, request: Request, milli: int) -> bool:
    limits: Mapping[str, int] = world.quotas.get(request.namespace, {})
    return any(world.charged(request.namespace) + milli > limit for limit in limits.values())
