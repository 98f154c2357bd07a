"""The present state of a pool in the terms of `packing`, and its steps in the terms of claims."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from remotegpu.api.claims import Allocation
from remotegpu_operator.allocation.inventory import Inventory, Slot
from remotegpu_operator.allocation.ledger import Entry, Ledger
from remotegpu_operator.allocation.packing import Gpu, Place, Plan, Step, Tenant, holds, plan

_NO_DRIVER: Final = "its appliance does not say its driver's version: it is of an older release"


@dataclass(frozen=True, slots=True)
class About:
    """Facts about a claim that the ledger does not know: see `packing.Tenant`.

    `waits` is whether the claim waits for more of its own GPUs: it is suspended, or not resized.
    """

    sessions: int = 1
    since: float = 0.0
    stays: str = ""
    waits: bool = False
    spread: bool = False


@dataclass(frozen=True, slots=True)
class PackingState:
    """A copy of a pool's state, so that a plan can be made in another thread."""

    gpus: tuple[Gpu, ...]
    tenants: tuple[Tenant, ...]
    slots: tuple[Slot, ...]
    held: Mapping[str, tuple[Allocation, ...]]

    @classmethod
    def of(
        cls,
        inventory: Inventory,
        ledger: Ledger,
        sessions: int,
        about: Callable[[str], About],
        wanted: Iterable[int] = (),
    ) -> "PackingState":
        """`sessions` is the most of one GPU. `wanted` are the GPUs that could serve each waiting request, as bits."""
        entries = {
            entry.request.uid: entry
            for slot in inventory.slots
            for entry in ledger.all_on(slot.appliance, slot.gpu.uuid)
        }
        facts = {uid: about(uid) for uid in entries}
        tenants = tuple(_tenant(inventory, entry, facts[uid]) for uid, entry in entries.items())
        waits = [entry.allocations for uid, entry in entries.items() if facts[uid].waits]
        mine = inventory.slots_at((each.appliance, each.gpu) for allocations in waits for each in allocations)
        kinds = _kinds(inventory)
        kept = inventory.mask_of(mine) | _kept(inventory, kinds, wanted)
        gpus = tuple(
            Gpu(
                slot.appliance,
                kinds[index],
                slot.gpu.shareable,
                sessions,
                closed=slot.closed or ("" if kinds[index][1] else _NO_DRIVER),
                kept=bool(kept >> index & 1),
            )
            for index, slot in enumerate(inventory.slots)
        )
        held = {uid: entry.allocations for uid, entry in entries.items()}
        return cls(gpus, tenants, inventory.slots, held)

    def plan(self, *, most: int, now: float, quiet: float) -> Plan:
        return plan(self.gpus, self.tenants, most=most, now=now, quiet=quiet)

    def holds(self, planned: "PackingState", steps: Sequence[Step], *, now: float, quiet: float) -> bool:
        """Whether `steps`, the rest of a plan for the state `planned`, are still to be made: see `packing.holds`."""
        if [_place(slot) for slot in self.slots] != [_place(slot) for slot in planned.slots]:
            return False
        used = {place.gpu for tenant in planned.tenants for place in tenant.places}
        return holds(self.gpus, self.tenants, steps, used, now=now, quiet=quiet)

    def allocations(self, step: Step) -> tuple[Allocation, ...]:
        """Returns what the claim gets in place of its allocations on the step's source, in their order."""
        mine = (each for each in self.held[step.uid] if each.appliance == step.source)
        slots = (self.slots[index] for index in step.to)
        return tuple(
            replace(each, appliance=slot.appliance, node=slot.node, gpu=slot.gpu.uuid)
            for each, slot in zip(mine, slots, strict=True)
        )


def _place(slot: Slot) -> tuple[str, str]:
    return slot.appliance, slot.gpu.uuid


def _kinds(inventory: Inventory) -> list[tuple[str, int]]:
    """Returns the kind of each GPU: see `packing.Gpu`."""
    drivers = {appliance.name: appliance.driver for appliance in inventory.appliances}
    return [(slot.gpu.model.casefold(), drivers[slot.appliance]) for slot in inventory.slots]


def _kept(inventory: Inventory, kinds: list[tuple[str, int]], wanted: Iterable[int]) -> int:
    """Returns the GPUs, as bits, that a waiting request could get while others of their kind would not serve it.

    To a request that any GPU of a kind serves, the GPU that a plan empties is as good as the one that it fills.
    """
    members: dict[tuple[str, int], list[int]] = {}
    for index, slot in enumerate(inventory.slots):
        if not slot.closed:
            members.setdefault(kinds[index], []).append(index)
    whole, kept = [inventory.mask_of(indices) for indices in members.values()], 0
    for mask in wanted:
        for kind in whole:
            if mask & kind != kind:
                kept |= mask & kind
    return kept


def _tenant(inventory: Inventory, entry: Entry, about: About) -> Tenant:
    places, stays = [], about.stays
    for each in entry.allocations:
        indices = inventory.slots_at([(each.appliance, each.gpu)])
        if not indices:
            stays = stays or "one of its GPUs is not there"
            continue
        shareable = inventory.slots[indices[0]].gpu.shareable
        divides = inventory.divides_time
        time = entry.request.ask.compute.guaranteed(each.memory, shareable) if divides else 0
        places.append(Place(indices[0], each.memory, time))
    return Tenant(entry.request.uid, tuple(places), about.sessions, about.since, stays, about.spread)
