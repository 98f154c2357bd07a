"""The index of free memory against a look at all GPUs, and how few are looked at."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remotegpu.api.claims import Allocation
from remotegpu.api.pools import AppliancePhase, ApplianceStatus, GpuStatus
from remotegpu.api.quantities import Ask
from remotegpu_operator.allocation import Allocator, Placed, Request
from remotegpu_operator.allocation.inventory import Inventory
from remotegpu_operator.allocation.ledger import Ledger
from remotegpu_operator.allocation.rooms import Rooms, free_bytes

MIB = 1 << 20
PHASES = [AppliancePhase.READY, AppliancePhase.READY, AppliancePhase.DRAINING]
GPUS = st.lists(st.tuples(st.sampled_from(["A100", "T4"]), st.sampled_from([400, 1000])), min_size=1, max_size=3)
POOLS = st.lists(st.tuples(st.sampled_from(PHASES), GPUS), min_size=1, max_size=4)
SHARES = st.lists(st.tuples(st.sampled_from(["red", "blue"]), st.integers(0, 11), st.integers(0, 500)), max_size=12)


def inventory_of(pool: list[tuple[AppliancePhase, list[tuple[str, int]]]]) -> Inventory:
    appliances = (
        ApplianceStatus(
            f"a-{number}",
            "",
            phase=phase,
            gpus=tuple(
                GpuStatus(f"g-{number}-{n}", model, mib * MIB, mib * MIB) for n, (model, mib) in enumerate(gpus)
            ),
        )
        for number, (phase, gpus) in enumerate(pool)
    )
    return Inventory.of("pool", appliances)


@given(
    pool=POOLS,
    shares=SHARES,
    mib=st.sampled_from([2, 100, 399, 400, 1000]),
    kept=st.integers(0, 4095),
    named=st.booleans(),
    asked_after=st.integers(0, 12),
)
def test_the_index_says_what_a_look_at_all_gpus_says(
    pool: list[tuple[AppliancePhase, list[tuple[str, int]]]],
    shares: list[tuple[str, int, int]],
    mib: int,
    kept: int,
    named: bool,
    asked_after: int,
) -> None:
    inventory, ledger = inventory_of(pool), Ledger()
    ask = Request("asks", "red", "asks", "pool", Ask(1, 0, mib * MIB), appliance="a-0" if named else "")
    candidates = inventory.candidates(ask)
    rooms = Rooms(inventory, ledger)
    for number, (namespace, index, size) in enumerate(shares):
        if number == asked_after:  # what has been asked for is kept up to date, too
            rooms.held(namespace, ledger)
            rooms = rooms.copy()
        slot = inventory.slots[index % len(inventory.slots)]
        uid = f"uid-{number // 2}"  # the second one takes the place of the first
        before = ledger.get(uid)
        share = Allocation(slot.appliance, "", slot.gpu.uuid, "", size * MIB, 0)
        ledger.put(Request(uid, namespace, uid, "pool", ask.ask), [share])
        for each in (*(before.allocations if before else ()), share):
            rooms.note(before.request.namespace if before else namespace, [(each.appliance, each.gpu)], ledger)
            rooms.note(namespace, [(each.appliance, each.gpu)], ledger)
    left = [free_bytes(slot, ledger) for slot in inventory.slots]
    assert rooms.free == left
    suits = [i for i in candidates.slots if left[i] >= mib * MIB]
    fitting = [(left[i] - mib * MIB, i) for i in suits if not kept >> i & 1]
    assert sorted(rooms.fitting(candidates, kept)) == sorted(fitting)
    assert rooms.tightest(candidates, kept) == min(fitting, default=None)
    assert rooms.count(candidates) == len(suits)
    open_slots = [i for i in candidates.slots if not inventory.slots[i].closed]
    if open_slots and max(left[i] for i in open_slots) > 0:
        assert rooms.emptiest(candidates) == max(open_slots, key=lambda i: (left[i], -i))
    for namespace in ("red", "blue"):
        held = [i for i, s in enumerate(inventory.slots) if ledger.has_some(namespace, (s.appliance, s.gpu.uuid))]
        assert rooms.held(namespace, ledger) == sum(1 << i for i in held)


def test_of_many_that_wait_for_the_same_one_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = tuple(GpuStatus(f"g-{n}", "A100", 1000 * MIB, 1000 * MIB) for n in range(64))
    allocator = Allocator()
    allocator.set_pool("pool", [ApplianceStatus("a", "", phase=AppliancePhase.READY, gpus=gpus)])
    asks = [Ask(1, 250), Ask(1, 500), Ask(1, 1000)]

    def request(number: int) -> Request:
        name = f"claim-{number:05}"
        return Request(name, f"team-{number % 4}", name, "pool", asks[number % 3], created="2026-11-30T00:00:00Z")

    for number in range(2000):
        allocator.submit(request(number))
    placed = [each for each in allocator.settle() if isinstance(each, Placed)]
    whole = [each.request.uid for each in placed if each.request.ask.milli_per_gpu == 1000]
    assert len(placed) < 200
    looked: list[object] = []
    tightest = Rooms.tightest

    def counted(self: Rooms, *arguments: object) -> object:
        looked.append(arguments)
        return tightest(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Rooms, "tightest", counted)
    groups = 4 * len(asks)
    allocator.submit(request(2000))
    allocator.settle()
    assert len(looked) <= groups, "one that comes"
    looked.clear()
    allocator.release(whole[0])
    served = [each for each in allocator.settle() if isinstance(each, Placed)]
    assert served and len(looked) <= 2 * groups + len(served), "one that goes"
