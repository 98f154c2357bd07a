"""The product's packing, moves and allocator in one process; the claims and pools are plain objects in dicts."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import pytest

from remotegpu.api.claims import Allocation, ClaimSpec, ClaimStatus, GPUClaim, Phase, Reason
from remotegpu.api.pools import AppliancePhase, ApplianceStatus, GPUPool, GpuStatus, PoolSpec
from remotegpu.api.quantities import Ask
from remotegpu.api.schedules import PackPhase, PackSpec, PackStatus
from remotegpu_operator.allocation import Allocator, request_of
from remotegpu_operator.claims import packing
from remotegpu_operator.claims.moves import Moves

MIB = 1 << 20


@dataclass
class _Clock:
    """The time that packing sees, in place of the real one."""

    now: datetime.datetime = datetime.datetime(2026, 11, 30, 12, tzinfo=datetime.UTC)

    def forward(self, **more: float) -> None:
        self.now += datetime.timedelta(**more)


class Lab:
    """A pool with appliances of one GPU of 1000 MiB each. `move` is what an appliance answers to an order to move."""

    def __init__(self, names: str, spec: PackSpec) -> None:
        self.clock = _Clock()
        self.claims: dict[str, GPUClaim] = {}
        self.pools = {"p": GPUPool("p", "uid-p", spec=PoolSpec(pack=spec))}
        self.appliances = {
            name: ApplianceStatus(
                name,
                f"node-{name}",
                AppliancePhase.READY,
                gpus=(GpuStatus(f"gpu-{name}", "A100", 1024 * MIB, 1000 * MIB),),
                driver=13000,
            )
            for name in names
        }
        self.allocator = Allocator()
        self.allocator.set_pool("p", self.appliances.values())
        self.told: list[tuple[str, str]] = []
        self.orders: list[str] = []
        self.refuse: Callable[[GPUClaim], str] = lambda claim: ""
        self.during: Callable[[GPUClaim], Awaitable[None]] | None = None
        self.moves = Moves(self.allocator, {}, self._carry, self._look)
        self.packing = self.another()

    def another(self) -> packing.Packing:
        """Returns the packing of an operator that starts now."""
        return packing.Packing(self.claims, self.pools, self.allocator, self.moves, self._changed, self._tell)

    def make(self, name: str, where: str, size: int, *, movable: bool = True) -> None:
        share = Allocation(where, f"node-{where}", f"gpu-{where}", "A100", size * MIB, size)
        spec = ClaimSpec("p", ask=Ask(1, 0, size * MIB), movable=movable)
        status = ClaimStatus(Phase.ALLOCATED, Reason.ALLOCATED, allocations=(share,))
        self.put(GPUClaim("team", name, f"uid-{name}", spec=spec, status=status))

    def put(self, claim: GPUClaim) -> None:
        self.claims[claim.uid] = claim
        self.allocator.hold(request_of(claim), claim.status.held)

    def drop(self, name: str) -> None:
        """A claim is deleted, as `Claims.claim_gone` handles it."""
        del self.claims[f"uid-{name}"]
        self.moves.forget(f"uid-{name}")
        self.allocator.release(f"uid-{name}")

    def change(self, name: str, **spec: object) -> None:
        claim = self.claims[f"uid-{name}"]
        self.put(replace(claim, spec=replace(claim.spec, **spec)))  # type: ignore[arg-type]

    def place(self, name: str) -> str:
        (allocation,) = self.claims[f"uid-{name}"].status.allocations
        return allocation.appliance

    @property
    def pool(self) -> GPUPool:
        return self.pools["p"]

    @property
    def status(self) -> PackStatus:
        return self.pool.status.pack or PackStatus()

    def set_spec(self, **spec: object) -> None:
        pack = replace(self.pool.spec.pack, **spec)  # type: ignore[arg-type]
        self.pools["p"] = replace(self.pool, spec=replace(self.pool.spec, pack=pack))

    def annotate(self, request: str) -> None:
        self.pools["p"] = replace(self.pool, pack_request=request)

    def events(self, reason: str) -> list[str]:
        return [message for each, message in self.told if each == reason]

    def runs(self, script: Callable[[], Awaitable[None]], most: float = 20.0) -> None:
        """Runs `script` beside packing."""

        async def both() -> None:
            following = asyncio.create_task(self.packing.follow())
            try:
                await asyncio.wait_for(script(), most)
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

        asyncio.run(both())

    async def packs(self, request: str = "") -> None:
        """Waits until a packing has ended that `request` or, without it, the schedule asks for."""
        before = self.status
        if request:
            self.annotate(request)
        await until(
            lambda: (
                self.status != before
                and self.status.phase is not PackPhase.MOVING
                and (not request or self.status.request == request)
            )
        )

    def _changed(self) -> None:
        self.pools["p"] = replace(self.pool, status=replace(self.pool.status, pack=self.packing.status(self.pool)))

    def _tell(self, pool: GPUPool, reason: str, message: str, warning: bool) -> None:
        self.told.append((reason, message))

    def _look(self, uid: str) -> None:
        asyncio.get_running_loop().call_soon(self._work, uid)

    def _work(self, uid: str) -> None:
        """Does what `Claims._work_claim` does for an allocated claim. The new status is stored at once."""
        if (claim := self.claims.get(uid)) is None:
            return
        status = self.moves.next(claim, self.appliances, self.clock.now.strftime("%Y-%m-%dT%H:%M:%SZ"))
        if status != claim.status:
            self.put(replace(claim, status=status))
            self._look(uid)

    async def _carry(self, claim: GPUClaim, source: str, target: str) -> str:
        self.orders.append(claim.name)
        if self.during is not None:
            await self.during(claim)
        return self.refuse(claim)


async def until(is_true: Callable[[], bool]) -> None:
    while not is_true():  # noqa: ASYNC110 - what changes is the product's
        await asyncio.sleep(0.002)


def lab(patch: pytest.MonkeyPatch, names: str = "abc", spec: PackSpec | None = None) -> Lab:
    made = Lab(names, spec or PackSpec(leave_alone=0))
    patch.setattr(packing, "_LOOK_SECONDS", 0.005)
    patch.setattr(packing, "_STORED_SECONDS", 0.001)
    patch.setattr(packing, "_now", lambda: made.clock.now)
    return made
