"""The free memory of each GPU of a pool, sorted by size. A bisection finds the tightest GPU that fits."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from remotegpu_operator.allocation.inventory import Candidates, Inventory, Slot
from remotegpu_operator.allocation.ledger import Ledger

_Place = tuple[str, str]  # appliance, GPU


class Rooms:
    """The free memory of each GPU in bytes; -1 for a closed GPU. Callers call `note` when the ledger has changed."""

    def __init__(self, inventory: Inventory, ledger: Ledger) -> None:
        self._inventory = inventory
        self.free = [free_bytes(slot, ledger) for slot in inventory.slots]
        # For each kind of GPU the sorted pairs (free bytes, index) of the GPUs that take claims.
        self._orders: list[list[tuple[int, int]]] = [[] for _ in inventory.kinds]
        for index, kind in enumerate(inventory.kind_of):
            if not inventory.slots[index].closed:
                self._orders[kind].append((self.free[index], index))
        for order in self._orders:
            order.sort()
        self._held: dict[str, int] = {}

    def copy(self) -> "Rooms":
        made = Rooms.__new__(Rooms)
        made._inventory, made.free = self._inventory, list(self.free)
        made._orders, made._held = [list(order) for order in self._orders], dict(self._held)
        return made

    def note(self, namespace: str, places: Iterable[_Place], ledger: Ledger) -> None:
        """Updates the GPUs at `places` after a change of a namespace's entries in the ledger."""
        for place in places:
            for index in self._inventory.slots_at((place,)):
                left = free_bytes(self._inventory.slots[index], ledger)
                if left != self.free[index]:
                    order = self._orders[self._inventory.kind_of[index]]
                    del order[bisect_left(order, (self.free[index], index))]
                    insort(order, (left, index))
                    self.free[index] = left
                if namespace in self._held:
                    bit = 1 << index
                    has = self._held[namespace] & ~bit
                    self._held[namespace] = has | bit if ledger.has_some(namespace, place) else has

    def held(self, namespace: str, ledger: Ledger) -> int:
        """Returns the GPUs on which claims of the namespace have memory, as bits."""
        if (mask := self._held.get(namespace)) is None:
            mask = self._held[namespace] = self._inventory.mask_of(self._inventory.slots_at(ledger.gpus_of(namespace)))
        return mask

    def fitting(self, candidates: Candidates, kept: int) -> Iterator[tuple[int, int]]:
        """Yields the GPUs that have room for a request and are not in `kept`: bytes left over, and index."""
        for size, kind in candidates.kinds:
            yield from self._of_kind(size, kind, kept)
        for size, index in candidates.singles:
            if self.free[index] >= size and not kept >> index & 1:
                yield self.free[index] - size, index

    def tightest(self, candidates: Candidates, kept: int) -> tuple[int, int] | None:
        """Returns the GPU of `fitting` with the fewest bytes left over; None if no GPU fits."""
        if candidates.singles:
            return min(self.fitting(candidates, kept), default=None)
        firsts = (next(self._of_kind(size, kind, kept), None) for size, kind in candidates.kinds)
        return min((first for first in firsts if first is not None), default=None)

    def _of_kind(self, size: int, kind: int, kept: int) -> Iterator[tuple[int, int]]:
        """Yields the same as `fitting` for one kind of GPU, the fewest bytes left over first."""
        if not self._inventory.kinds[kind] & ~kept:
            return
        order = self._orders[kind]
        for place in range(bisect_left(order, (size,)), len(order)):
            left, index = order[place]
            if not kept or not kept >> index & 1:
                yield left - size, index

    def count(self, candidates: Candidates) -> int:
        """Returns the number of GPUs with room for a request."""
        orders = ((self._orders[kind], size) for size, kind in candidates.kinds)
        of_kinds = sum(len(order) - bisect_left(order, (size,)) for order, size in orders)
        return of_kinds + sum(self.free[index] >= size for size, index in candidates.singles)

    def emptiest(self, candidates: Candidates) -> int:
        """Returns the index of the GPU with the most free memory; of several the lowest index."""
        best = [(-self.free[index], index) for _, index in candidates.singles]
        for _, kind in candidates.kinds:
            if order := self._orders[kind]:
                most = order[-1][0]
                best.append((-most, order[bisect_left(order, (most,))][1]))
        return min(best)[1] if best else candidates.slots[0]


def free_bytes(slot: Slot, ledger: Ledger) -> int:
    """Returns the bytes of a GPU that are not allocated; -1 if the GPU takes no new claims."""
    return -1 if slot.closed else slot.gpu.shareable - ledger.memory(slot.appliance, slot.gpu.uuid)
