"""Tests of plans of moves while others want the room, and of plans whose rest is not worth while any more."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from allocation.packed import NOW, QUIET, Pool, pool

from remotegpu.api.claims import Allocation
from remotegpu.api.pools import AppliancePhase, ApplianceStatus, EnvironmentStatus, GpuStatus
from remotegpu.api.quantities import Ask
from remotegpu_operator.allocation import About, Allocator, PackingState, Request
from remotegpu_operator.allocation.packing import Gpu, Place, Plan, Step, Tenant, holds

A100 = ("A100", 13000)
MIB = 1 << 20


def still(start: Pool, now: Pool, steps: Sequence[Step]) -> bool:
    return holds(now.gpus, now.tenants, steps, start.in_use(), now=NOW, quiet=QUIET)


def random_plans() -> list[tuple[Pool, Plan]]:
    pools = (
        pool(seed, appliances=2 + seed % 7, gpus=1 + seed % 4, claims=3 + seed % 23, special=(seed % 5) / 12)
        for seed in range(150)
    )
    return [(start, planned) for start in pools if (planned := start.planned(100)).steps]


def test_a_plan_holds_until_its_end_if_nothing_else_happens() -> None:
    """Also where what has moved does not move again."""
    for start, planned in random_plans():
        now = start
        for index, step in enumerate(planned.steps):
            assert still(start, now, planned.steps[index:])
            now = now.after(step)
            now = now.with_tenant(replace(now.tenant(step.uid), stays="it has moved already"))


def test_a_plan_whose_gpus_are_not_emptied_any_more_does_not_hold() -> None:
    """A newcomer on every GPU that would be emptied; on one of them, if the first step is off that one."""
    tried = 0
    for start, planned in random_plans():
        end = start
        for step in planned.steps:
            end = end.after(step)
        freed = start.in_use() - end.in_use()
        sources = {place.gpu for place in start.here(planned.steps[0].uid, planned.steps[0].source)} & freed
        late = Tenant("late", tuple(Place(gpu, 0) for gpu in sources))
        assert not still(start, replace(start, tenants=(*start.tenants, late)), planned.steps)
        tried += 1
    assert tried > 50


def test_a_plan_does_not_hold_after_a_change_of_what_it_moves() -> None:
    """The claim is gone, it stays, its share grew, it is elsewhere, its target is full, closed, or empty meanwhile."""
    dice = random.Random(7)
    emptied = 0
    for start, planned in random_plans():
        step = dice.choice(planned.steps)
        tenant = start.tenant(step.uid)
        without = replace(start, tenants=tuple(each for each in start.tenants if each.uid != step.uid))
        assert not still(start, without, planned.steps)
        assert not still(start, start.with_tenant(replace(tenant, stays="it is Suspended")), planned.steps)
        assert not still(start, start.after(step), planned.steps)
        (*_, to) = step.to
        full = Tenant("late", (Place(to, start.gpus[to].size),))
        assert not still(start, replace(start, tenants=(*start.tenants, full)), planned.steps)
        for change in ({"closed": "it drains"}, {"kept": True}, {"kind": ("T4", 1)}):
            gpus = tuple(replace(gpu, **change) if index == to else gpu for index, gpu in enumerate(start.gpus))
            assert not still(start, replace(start, gpus=gpus), planned.steps)
        if to in start.in_use():
            left = replace(start, tenants=tuple(e for e in start.tenants if all(p.gpu != to for p in e.places)))
            assert not still(start, left, planned.steps)
            emptied += 1
    assert emptied > 50


def test_a_claim_that_grew_is_left_alone_also_in_the_midst_of_a_plan() -> None:
    gpus = tuple(Gpu(name, A100, 100, 8) for name in "ab")
    start = Pool(gpus, (Tenant("x", (Place(0, 10),)), Tenant("y", (Place(1, 60),))))
    planned = start.planned(5)
    assert still(start, start, planned.steps)
    assert not still(start, start.with_tenant(replace(start.tenant("x"), since=NOW - 1)), planned.steps)


def test_a_time_in_the_future_is_a_clock_that_was_wrong() -> None:
    gpus = tuple(Gpu(name, A100, 100, 8) for name in "ab")
    for since, moves in ((NOW + 1, "y"), (NOW + 86_400, "x")):
        start = Pool(gpus, (Tenant("x", (Place(0, 10),), since=since), Tenant("y", (Place(1, 60),))))
        assert [step.uid for step in start.planned(5).steps] == [moves]


def test_no_claim_moves_to_a_gpu_whose_room_another_one_waits_for() -> None:
    """`b` has a claim that asks for 90 again: the fullest is `c` then."""
    gpus = (Gpu("a", A100, 100, 8), Gpu("b", A100, 100, 8, kept=True), Gpu("c", A100, 100, 8))
    tenants = (
        Tenant("m", (Place(0, 40),)),
        Tenant("suspended", (Place(1, 2),), stays="it is Suspended"),
        Tenant("big", (Place(2, 55),)),
    )
    planned = Pool(gpus, tenants).planned(5)
    assert [(step.uid, step.to) for step in planned.steps] == [("m", (2,))]
    # One that grows may itself leave, and so get its room elsewhere.
    grows = Pool(gpus[:2], (Tenant("m", (Place(0, 60),)), Tenant("grows", (Place(1, 5),)))).planned(5)
    assert [step.uid for step in grows.steps] == ["grows"]


def test_a_claim_that_asked_for_the_emptiest_gpu_keeps_it() -> None:
    """The others go beside a claim that stays elsewhere, though its GPU is emptier."""
    gpus = tuple(Gpu(name, A100, 100, 8) for name in "abc")
    spread = Tenant("spread", (Place(1, 50),), stays="spec.placement is Spread", spread=True)
    tenants = (Tenant("m", (Place(0, 40),)), spread, Tenant("fixed", (Place(2, 5),), stays="it is not movable"))
    assert [step.target for step in Pool(gpus, tenants).planned(5).steps] == ["c"]
    assert [step.target for step in Pool(gpus, tenants[:2]).planned(5).steps] == ["b"]


def appliance(name: str, driver: int = 13000, *, offload: bool = False, size: int = 1000) -> ApplianceStatus:
    gpu = GpuStatus(f"gpu-{name}", "A100", 1024 * MIB, size * MIB)
    environments = (EnvironmentStatus("torch", "cuda", "3.12.4", "torch 2.15.0"),) if offload else ()
    ready = AppliancePhase.READY
    return ApplianceStatus(name, f"node-{name}", ready, gpus=(gpu,), environments=environments, driver=driver)


def request(uid: str, size: int, **more: object) -> Request:
    return replace(Request(uid, "red", uid, "p", Ask(1, 0, size * MIB)), **more)  # type: ignore[arg-type]


def share(where: str, size: int) -> Allocation:
    return Allocation(where, f"node-{where}", f"gpu-{where}", "A100", size * MIB, size)


def allocator_of(*appliances: ApplianceStatus, **memory: tuple[str, int]) -> Allocator:
    allocator = Allocator()
    allocator.set_pool("p", appliances)
    for uid, (where, size) in memory.items():
        allocator.hold(request(uid, size), [share(where, size)])
    return allocator


def state_of(allocator: Allocator, **about: About) -> PackingState:
    found = allocator.packing("p", 16, lambda uid: about.get(uid, About()))
    assert found is not None
    return found


def targets(allocator: Allocator, **about: About) -> list[str]:
    planned = state_of(allocator, **about).plan(most=5, now=NOW, quiet=QUIET)
    return [step.target for step in planned.steps]


def test_the_room_of_a_suspended_claim_is_not_filled() -> None:
    allocator = allocator_of(*map(appliance, "abc"), m=("a", 400), suspended=("b", 20), big=("c", 550))
    assert targets(allocator, suspended=About(stays="it is Suspended")) == ["b", "b"]
    assert targets(allocator, suspended=About(stays="it is Suspended", waits=True)) == ["c"]


def test_what_alone_serves_a_waiting_claim_is_not_filled() -> None:
    """That one is emptied instead. For a plain request the GPU that is emptied is as good."""
    for where, more, expected in (
        ("b", {}, ["b"]),
        ("b", {"appliance": "b"}, ["a"]),
        ("b", {"offload": True}, ["a"]),
    ):
        allocator = allocator_of(appliance("a"), appliance("b", offload=True), one=("a", 100), two=(where, 600))
        allocator.submit(request("late", 950, **more))
        allocator.settle()
        assert targets(allocator) == expected, more
    # Only the GPU of `b` has as much memory as this one asks for.
    allocator = allocator_of(appliance("a"), appliance("b", size=1010), one=("a", 100), two=("b", 600))
    assert targets(allocator) == ["b"]
    allocator.submit(request("late", 1005))
    allocator.settle()
    assert targets(allocator) == ["a"]


def test_an_appliance_without_a_drivers_version_is_left_alone() -> None:
    allocator = allocator_of(appliance("a", 0), appliance("b", 0), one=("a", 100), two=("b", 600))
    planned = state_of(allocator).plan(most=5, now=NOW, quiet=QUIET)
    assert not planned.steps
    assert "driver" in planned.stays["one"]


def test_a_plan_for_other_gpus_does_not_hold() -> None:
    allocator = allocator_of(*map(appliance, "ab"), one=("a", 100), two=("b", 600))
    planned_on = state_of(allocator)
    planned = planned_on.plan(most=5, now=NOW, quiet=QUIET)
    assert planned.steps
    assert state_of(allocator).holds(planned_on, planned.steps, now=NOW, quiet=QUIET)
    allocator.set_pool("p", [appliance(name) for name in ("Z", "a", "b")])
    assert not state_of(allocator).holds(planned_on, planned.steps, now=NOW, quiet=QUIET)


def test_an_order_is_not_refused_for_what_the_claim_itself_has_booked() -> None:
    """The attempt before could not write that the claim moves."""
    allocator = allocator_of(*map(appliance, "ab"), one=("a", 600), two=("b", 300))
    to = (share("b", 600),)
    assert allocator.refusal("one", "a", to) == ""
    allocator.hold(request("one", 600), [share("a", 600), *to])
    assert allocator.refusal("one", "a", to) == ""


def test_a_refusal_names_its_cause() -> None:
    draining = replace(appliance("b"), phase=AppliancePhase.DRAINING)
    allocator = allocator_of(appliance("a"), draining, one=("a", 100))
    assert allocator.refusal("one", "a", (share("b", 100),)) == "b is Draining"
    assert "not there" in allocator.refusal("one", "a", (share("gone", 100),))
