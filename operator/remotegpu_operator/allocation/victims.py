"""Chooses claims that give their shares to waiting claims of higher priority. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from remotegpu_operator.allocation.decisions import Request
from remotegpu_operator.allocation.inventory import Inventory
from remotegpu_operator.allocation.ledger import Entry, Ledger


@dataclass(frozen=True, slots=True)
class _Option:
    """A GPU that would have room for the request without these claims. By cost, few and unimportant ones are first."""

    claims: tuple[Entry, ...]
    slot: int

    @property
    def cost(self) -> tuple[int, int, int]:
        return (len(self.claims), max((each.request.priority for each in self.claims), default=0), self.slot)


def victims(
    inventory: Inventory, ledger: Ledger, waiting: Iterable[Request], before: Mapping[str, str]
) -> dict[str, str]:
    """Returns the claims that shall be suspended, each with the uid of the waiting one that gets its share.

    `waiting` is in the order in which requests are served. `before` has the last choice, which stays if it still
    serves.
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
        # A suspended claim continues also where nothing new begins.
        return [index for index in inventory.slots_at(request.again) if not inventory.slots[index].broken]
    return [index for index in inventory.candidates(request).slots if not inventory.slots[index].closed]


def _gives_way(request: Request, to: Request) -> bool:
    return request.suspendable and not request.again and request.priority < to.priority


def _order(entry: Entry, before: Mapping[str, str]) -> tuple[bool, int, tuple[int, ...]]:
    """Returns the order of giving way: claims chosen already, then the least important, then the youngest."""
    request = entry.request
    return (request.uid not in before, request.priority, tuple(-ord(letter) for letter in request.created))
