"""Any order of claims, deletions, losses, drains, quotas and crashes, against the same rules in their simplest form."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from allocation import naive
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from remotegpu.api.claims import Placement, Reason
from remotegpu.api.pools import Amount, AppliancePhase, ApplianceStatus, GpuStatus
from remotegpu.api.quantities import Ask
from remotegpu_operator.allocation import Allocator, Placed, Request, Waiting

T = TypeVar("T")
MIB = 1 << 20
POOLS = ("big", "mixed", "small")
NAMESPACES = ("red", "blue")


@dataclass(frozen=True)
class Order:
    pool: str
    namespace: str
    ask: Ask
    model: str
    placement: Placement
    priority: int
    second: int


def often(usual: Sequence[T], rare: Sequence[T]) -> st.SearchStrategy[T]:
    """Mostly values that make claims compete: if each were refused for another reason, none of them would wait."""
    return st.sampled_from([*usual, *usual, *usual, *usual, *rare])


ASKS = often(
    [Ask(1, 250), Ask(1, 500), Ask(1, 1000), Ask(1, 333), Ask(2, 500), Ask(1, 0, 450 * MIB)],
    [
        Ask(1, 1),
        Ask(3, 1000),
        Ask(5, 100),
        Ask(1, 0, MIB),
        Ask(2, 0, 3 * MIB),
        Ask(1, 0, 1001 * MIB),
        Ask(1, 0, 1 << 40),
    ],
)
ORDERS = st.builds(
    Order,
    pool=often(["small", "small", "big", "mixed"], ["absent"]),
    namespace=st.sampled_from(NAMESPACES),
    ask=ASKS,
    model=often([""], ["a100", "T4", "H100"]),
    placement=st.sampled_from(Placement),
    priority=often([0], [10]),
    second=st.integers(0, 3),
)


def gpu(name: str, model: str, mib: int) -> GpuStatus:
    return GpuStatus(name, model, (mib + 24) * MIB, mib * MIB)


def inventory() -> dict[str, list[ApplianceStatus]]:
    def ready(name: str, *gpus: GpuStatus) -> ApplianceStatus:
        return ApplianceStatus(name, f"node of {name}", AppliancePhase.READY, gpus=gpus)

    return {
        "big": [
            ready("big-1", *(gpu(f"big-1-{i}", "NVIDIA A100", 1000) for i in range(2))),
            ready("big-2", gpu("big-2-0", "NVIDIA A100", 1009)),
        ],
        "mixed": [
            ready("mixed-1", gpu("mixed-1-0", "NVIDIA A100", 1000), gpu("mixed-1-1", "Tesla T4", 400)),
            ready("mixed-2", gpu("mixed-2-0", "Tesla T4", 401)),
        ],
        "small": [ready("small-1", gpu("small-1-0", "NVIDIA A100", 900))],
    }


def whole_mib(memory: int) -> int:
    return memory // MIB * MIB


class AllocationMachine(RuleBasedStateMachine):
    """`world` is the API server's state: only the rules and the allocator's decisions change it."""

    def __init__(self) -> None:
        super().__init__()
        self.world = naive.World(pools=inventory())
        self.told: dict[str, Reason] = {}
        self.numbers = 0
        self.allocator = self.rebuilt()

    def rebuilt(self) -> Allocator:
        """Builds the allocator as a new leader does, from the API server's content."""
        allocator = Allocator()
        allocator.set_time(self.world.now.timestamp())
        for request in self.world.waiting.values():
            allocator.submit(request)
        for request, shares in self.world.held.values():
            allocator.hold(request, shares)
        for name, appliances in self.world.pools.items():
            allocator.set_pool(name, appliances)
        for namespace, hard in self.world.quotas.items():
            allocator.set_quotas(namespace, hard)
        return allocator

    def settle(self) -> None:
        decisions = self.allocator.settle()
        assert len({decision.request.uid for decision in decisions}) == len(decisions)
        placed = {d.request.uid: d.allocations for d in decisions if isinstance(d, Placed)}
        told = {d.request.uid: d for d in decisions if isinstance(d, Waiting)}
        assert all(self.told.get(uid) != decision.reason for uid, decision in told.items()), "told twice"
        expected, reasons = naive.settle(self.world)
        assert placed == expected
        self.told = {uid: told[uid].reason if uid in told else self.told[uid] for uid in self.world.waiting}
        assert self.told == reasons
        assert all(decision.message == self.allocator.message(uid) for uid, decision in told.items())

    @rule(burst=st.lists(ORDERS, min_size=1, max_size=6))
    def create(self, burst: list[Order]) -> None:
        for order in burst:
            self.numbers += 1
            uid, name = f"uid-{self.numbers}", f"claim-{self.numbers:03}"
            # Clocks of API servers differ, and several claims come in one second.
            created = (self.world.now + datetime.timedelta(seconds=order.second)).strftime("%Y-%m-%dT%H:%M:%SZ")
            request = Request(
                uid,
                order.namespace,
                name,
                order.pool,
                order.ask,
                order.model,
                order.placement,
                order.priority,
                created,
            )
            self.world.waiting[uid] = request
            self.allocator.submit(request)
        self.settle()

    @rule(seconds=st.sampled_from([1, 300, 599, 600, 1200, 1800, 2400]))
    def time_passes(self, seconds: int) -> None:
        """Between the times of `next_change` no claim gets anything."""
        until = self.world.now + datetime.timedelta(seconds=seconds)
        while self.allocator.next_change <= until.timestamp():
            self.world.now = datetime.datetime.fromtimestamp(self.allocator.next_change, datetime.UTC)
            self.allocator.set_time(self.world.now.timestamp())
            self.settle()
        self.world.now = until
        self.allocator.set_time(until.timestamp())
        self.settle()

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        known = [*self.world.waiting, *self.world.held]
        if known:
            self.remove(data.draw(st.sampled_from(known)))
            self.settle()

    def remove(self, uid: str) -> None:
        self.allocator.release(uid)
        self.world.waiting.pop(uid, None)
        self.world.held.pop(uid, None)

    @rule(data=st.data(), priority=st.sampled_from((-5, 0, 20)))
    def change_priority(self, data: st.DataObject, priority: int) -> None:
        if self.world.waiting:
            uid = data.draw(st.sampled_from(list(self.world.waiting)))
            request = self.world.waiting[uid] = replace(self.world.waiting[uid], priority=priority)
            self.allocator.submit(request)
            self.settle()

    @rule(data=st.data(), refuse=st.booleans())
    def refused(self, data: st.DataObject, refuse: bool) -> None:
        """An appliance that refused the claim does not get it, until it is tried again."""
        if self.world.waiting:
            uid = data.draw(st.sampled_from(list(self.world.waiting)))
            request = self.world.waiting[uid]
            names = [each.name for each in self.world.pools.get(request.pool, ())]
            by = data.draw(st.frozensets(st.sampled_from(names))) if refuse and names else frozenset()
            request = self.world.waiting[uid] = replace(request, refused_by=by)
            self.allocator.submit(request)
            self.settle()

    @rule(data=st.data(), pool=st.sampled_from(POOLS), phase=st.sampled_from(AppliancePhase), forgotten=st.booleans())
    def change_phase(self, data: st.DataObject, pool: str, phase: AppliancePhase, forgotten: bool) -> None:
        """A lost appliance's claims are lost with it; its GPUs may stay known or not."""
        if pool in self.world.pools:
            appliances = self.world.pools[pool]
            index = data.draw(st.integers(0, len(appliances) - 1))
            gpus = () if forgotten and phase == AppliancePhase.LOST else inventory()[pool][index].gpus
            changed = replace(appliances[index], phase=phase, gpus=gpus)
            self.world.pools[pool] = [*appliances[:index], changed, *appliances[index + 1 :]]
            if phase == AppliancePhase.LOST:
                for uid, (_, shares) in list(self.world.held.items()):
                    if any(share.appliance == changed.name for share in shares):
                        self.remove(uid)
            self.allocator.set_pool(pool, self.world.pools[pool])
            self.settle()

    @rule(data=st.data(), pool=st.sampled_from(POOLS), healthy=st.booleans())
    def change_health(self, data: st.DataObject, pool: str, healthy: bool) -> None:
        """A claim on an unhealthy GPU stays there: whether it still works, the program finds out."""
        gpus = [gpu.uuid for appliance in self.world.pools.get(pool, ()) for gpu in appliance.gpus]
        if gpus:
            uuid = data.draw(st.sampled_from(gpus))
            self.world.pools[pool] = [
                replace(
                    appliance,
                    gpus=tuple(
                        replace(gpu, healthy=healthy, message="Xid 79") if gpu.uuid == uuid else gpu
                        for gpu in appliance.gpus
                    ),
                )
                for appliance in self.world.pools[pool]
            ]
            self.allocator.set_pool(pool, self.world.pools[pool])
            self.settle()

    @rule(pool=st.sampled_from(POOLS), exists=st.booleans())
    def change_pool(self, pool: str, exists: bool) -> None:
        if exists:
            self.world.pools[pool] = inventory()[pool]
            self.allocator.set_pool(pool, inventory()[pool])
        else:
            self.world.pools.pop(pool, None)
            self.allocator.remove_pool(pool)
        self.settle()

    @rule(
        namespace=st.sampled_from(NAMESPACES), hard=st.sampled_from(({}, {"a": 0}, {"a": 1500}, {"a": 9000, "b": 2900}))
    )
    def change_quota(self, namespace: str, hard: dict[str, int]) -> None:
        self.world.quotas[namespace] = hard
        self.allocator.set_quotas(namespace, hard)
        self.settle()

    @rule()
    def crash(self) -> None:
        """The new leader knows what the old one knew, and reports again why each claim waits."""
        old, self.allocator = self.allocator, self.rebuilt()
        decisions = self.allocator.settle()
        assert {d.request.uid: d.reason for d in decisions if isinstance(d, Waiting)} == self.told
        assert len(decisions) == len(self.told), "a claim was placed by the crash"
        assert self.allocator.waiting() == old.waiting()
        for pool in (*POOLS, "absent"):
            assert self.allocator.capacity(pool) == old.capacity(pool)
        for uid in (*self.world.waiting, *self.world.held):
            assert self.allocator.held(uid) == old.held(uid)
            assert self.allocator.message(uid) == old.message(uid)

    @invariant()
    def no_gpu_has_more_than_it_shares(self) -> None:
        for appliances in inventory().values():
            for appliance in appliances:
                for gpu in appliance.gpus:
                    assert self.world.used(appliance.name, gpu.uuid) <= gpu.shareable

    @invariant()
    def each_has_what_it_asked_for_on_different_gpus(self) -> None:
        for request, shares in self.world.held.values():
            assert len({(share.appliance, share.gpu) for share in shares}) == request.ask.count

    @invariant()
    def a_pool_reports_the_sums_of_its_claims(self) -> None:
        for pool, appliances in self.world.pools.items():
            capacity = self.allocator.capacity(pool)
            used = {(a.name, g.uuid): self.world.used(a.name, g.uuid) for a in appliances for g in a.gpus}
            assert {(a.name, g.uuid): g.allocated_memory for a in capacity.appliances for g in a.gpus} == used
            assert capacity.allocated.memory == whole_mib(sum(used.values()))
            assert capacity.total == Amount(1000 * len(used), sum(g.shareable for a in appliances for g in a.gpus))
            whole = [g for a in capacity.appliances if a.phase == AppliancePhase.READY for g in a.gpus if g.healthy]
            assert capacity.free.memory == whole_mib(sum(g.shareable - g.allocated_memory for g in whole))
            assert capacity.free.milli == sum(1000 - g.allocated_milli for g in whole)

    def teardown(self) -> None:
        """When all are gone nothing is left of them."""
        for uid in [*self.world.waiting, *self.world.held]:
            self.remove(uid)
        self.settle()
        assert all(self.allocator.capacity(pool).allocated == Amount() for pool in POOLS)


TestAllocation = AllocationMachine.TestCase
TestAllocation.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
