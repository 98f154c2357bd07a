"""Chooses the claims to suspend for waiting claims of higher priority. All functions are pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from remotegpu_operator.allocation.decisions import Request
from remotegpu_operator.allocation.inventory import Inventory
from remotegpu_operator.allocation.ledger import Entry, Ledger


@dataclass(frozen=True, slots=True)
class _Option:
    """A GPU that would have room for the request without `claims`. Few claims of low priority have the lowest cost."""

    claims: tuple[Entry, ...]
    slot: int

    @property
    def cost(self) -> tuple[int, int, int]:
        return (len(self.claims), max((each.request.priority for each in self.claims), default=0), self.slot)


def victims(
    inventory: Inventory, ledger: Ledger, waiting: Iterable[Request], before: Mapping[str, str]
) -> dict[str, str]:
    """Returns the uids of the claims to suspend, each with the uid of the waiting request that gets the share.

    `waiting` is in the order in which requests are served. `before` is the last result: its claims are preferred, so
    that the choice stays the same while it is sufficient.
    """
    chosen: dict[str, str] = {}
    for request in waiting:
        options = sorted(_options(inventory, ledger, request, before, chosen), key=lambda option: option.cost)
        wanted = len(request.again) or request.ask.count
        if len(options) >= wanted:
            for option in options[:wanted]:
                chosen |= {each.request.uid: request.uid for each in option.claims}
    return chosen


def _options(
    inventory: Inventory, ledger: Ledger, request: Request, before: Mapping[str, str], chosen: Mapping[str, str]
) -> Iterator[_Option]:
    for index in _slots(inventory, request):
        slot = inventory.slots[index]
        taken = ledger.memory_of_others(request.uid, slot.appliance, slot.gpu.uuid)
        lack = request.ask.bytes_of(slot.gpu.shareable) - (slot.gpu.shareable - taken)
        claims = []
        for entry in sorted(ledger.on(slot.appliance, slot.gpu.uuid), key=lambda each: _order(each, before)):
            if lack > 0 and _gives_way(entry.request, request) and entry.request.uid not in chosen:
                claims.append(entry)
                lack -= entry.memory_on(slot.appliance, slot.gpu.uuid)
        if lack <= 0:
            yield _Option(tuple(claims), index)


def _slots(inventory: Inventory, request: Request) -> list[int]:
    if request.again:
        # A suspended claim may continue on a GPU that takes no new claims.
        return [index for index in inventory.slots_at(request.again) if not inventory.slots[index].broken]
    return [index for index in inventory.candidates(request).slots if not inventory.slots[index].closed]


def _gives_way(request: Request, to: Request) -> bool:
    return request.suspendable and not request.again and request.priority < to.priority


def _order(entry: Entry, before: Mapping[str, str]) -> tuple[bool, int, tuple[int, ...]]:
    """Returns the sort key of claims to suspend: the last choice first, then low priority, then the youngest."""
    request = entry.request
    return (request.uid not in before, request.priority, tuple(-ord(letter) for letter in request.created))
