"""The present state of a pool in the terms of `packing`, and its steps in the terms of claims."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from remotegpu.api.claims import Allocation
from remotegpu_operator.allocation.inventory import Inventory, Slot
from remotegpu_operator.allocation.ledger import Entry, Ledger
from remotegpu_operator.allocation.packing import Gpu, Place, Plan, Step, Tenant, plan


@dataclass(frozen=True, slots=True)
class About:
    """Facts about a claim that the ledger does not know: see `packing.Tenant`."""

    sessions: int = 1
    since: float = 0.0
    stays: str = ""


@dataclass(frozen=True, slots=True)
class PackingState:
    """A copy of a pool's state, so that a plan can be made in another thread."""

    gpus: tuple[Gpu, ...]
    tenants: tuple[Tenant, ...]
    slots: tuple[Slot, ...]
    held: Mapping[str, tuple[Allocation, ...]]

    @classmethod
    def of(cls, inventory: Inventory, ledger: Ledger, sessions: int, about: Callable[[str], About]) -> "PackingState":
        """`sessions` is the most of one GPU."""
        drivers = {appliance.name: appliance.driver for appliance in inventory.appliances}
        gpus = tuple(
            Gpu(
                slot.appliance,
                (slot.gpu.model.casefold(), drivers[slot.appliance]),
                slot.gpu.shareable,
                sessions,
                closed=slot.closed,
            )
            for slot in inventory.slots
        )
        entries = {
            entry.request.uid: entry
            for slot in inventory.slots
            for entry in ledger.all_on(slot.appliance, slot.gpu.uuid)
        }
        tenants = tuple(_tenant(inventory, entry, about(uid)) for uid, entry in entries.items())
        held = {uid: entry.allocations for uid, entry in entries.items()}
        return cls(gpus, tenants, inventory.slots, held)

    def plan(self, *, most: int, now: float, quiet: float) -> Plan:
        return plan(self.gpus, self.tenants, most=most, now=now, quiet=quiet)

    def allocations(self, step: Step) -> tuple[Allocation, ...]:
        """Returns what the claim gets in place of its allocations on the step's source, in their order."""
        mine = (each for each in self.held[step.uid] if each.appliance == step.source)
        slots = (self.slots[index] for index in step.to)
        return tuple(
            replace(each, appliance=slot.appliance, node=slot.node, gpu=slot.gpu.uuid)
            for each, slot in zip(mine, slots, strict=True)
        )


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
    return Tenant(entry.request.uid, tuple(places), about.sessions, about.since, stays)
