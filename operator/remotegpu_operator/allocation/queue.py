"""The queue of a pool. Requests with equal needs form a group, and only the first request of each group is examined."""

import heapq
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from remotegpu.api.claims import Reason
from remotegpu_operator.allocation.decisions import Request
from remotegpu_operator.allocation.inventory import Candidates, Inventory

Turn = tuple[int, str, str, str, str]


def turn_of(request: Request) -> Turn:
    return request.turn


@dataclass(slots=True)
class Group:
    """Waiting requests of one namespace that ask for the same and are at the same stage of their wait."""

    stage: float  # the stage of the requests' wait, from `Waits`
    members: list[Request] = field(default_factory=list)  # in the order in which they are served
    # The reason of the wait. It has been reported for all members except those in `untold`.
    reason: Reason | None = None
    untold: dict[str, Request] = field(default_factory=dict)
    _known: tuple[Inventory, Candidates] | None = None

    def candidates(self, inventory: Inventory) -> Candidates:
        """Returns the GPUs that could serve each of the group's requests if they were empty."""
        if self._known is None or self._known[0] is not inventory:
            self._known = inventory, inventory.candidates(self.members[0])
        return self._known[1]

    def copy(self) -> "Group":
        return Group(self.stage, list(self.members), self.reason, dict(self.untold))

    def before(self, turn: Turn) -> int:
        """Returns the number of members that are served before `turn`."""
        return bisect_left(self.members, turn, key=turn_of)

    def tell(self, reason: Reason) -> list[Request]:
        """Sets the group's reason, and returns the members for which it has not been reported yet."""
        told = list(self.members) if reason is not self.reason else list(self.untold.values())
        self.reason = reason
        self.untold.clear()
        return told


class Queue:
    def __init__(self) -> None:
        self._groups: dict[Hashable, Group] = {}
        self._keys: dict[str, Hashable] = {}

    def copy(self) -> "Queue":
        made = Queue()
        made._groups = {key: group.copy() for key, group in self._groups.items()}
        made._keys = dict(self._keys)
        return made

    def __bool__(self) -> bool:
        return bool(self._groups)

    def add(self, request: Request, stage: float) -> None:
        key = _key(request, stage)
        if (group := self._groups.get(key)) is None:
            group = self._groups[key] = Group(stage)
        insort(group.members, request, key=turn_of)
        group.untold[request.uid] = request
        self._keys[request.uid] = key

    def remove(self, request: Request) -> None:
        key = self._keys.pop(request.uid)
        group = self._groups[key]
        del group.members[group.before(request.turn)]
        group.untold.pop(request.uid, None)
        if not group.members:
            del self._groups[key]

    def group_of(self, uid: str) -> Group:
        return self._groups[self._keys[uid]]

    def requests(self) -> Iterator[Request]:
        """Yields all requests in the order in which they are served."""
        return heapq.merge(*(group.members for group in self._groups.values()), key=turn_of)

    def heads(self) -> Iterator[tuple[Request, Group]]:
        """Yields the first request of each group with the group, in the order in which they are served.

        If the caller removes the request from the group, the iterator later yields the group's next request.
        """
        heap = [(group.members[0].turn, number, group) for number, group in enumerate(self._groups.values())]
        heapq.heapify(heap)
        while heap:
            turn, number, group = heap[0]
            yield group.members[0], group
            if group.members and group.members[0].turn != turn:
                heapq.heapreplace(heap, (group.members[0].turn, number, group))
            else:
                heapq.heappop(heap)


class Walk:
    """The reservations during one walk through a queue: the GPUs that are kept for the groups passed so far."""

    def __init__(self) -> None:
        # GPUs, as bits, that are kept from all later requests; and those kept only from requests of a namespace.
        self.kept = 0
        self._kept_within: Counter[str] = Counter()
        self._keeps: list[tuple[Group, int, str]] = []

    def keep(self, group: Group, mask: int, within: str) -> None:
        """Keeps the GPUs in `mask` for a group, from later requests of namespace `within`; from all if it is empty."""
        if within:
            self._kept_within[within] |= mask
        else:
            self.kept |= mask
        self._keeps.append((group, mask, within))

    def kept_from(self, namespace: str) -> int:
        return self.kept | self._kept_within[namespace]

    def ahead(self, mask: int, request: Request) -> int:
        """Returns the number of earlier requests for which some of the GPUs in `mask` are kept from `request`."""
        whose = ("", request.namespace)
        keeping = (group for group, kept, within in self._keeps if kept & mask and within in whose)
        return sum(group.before(request.turn) for group in keeping)


def _key(request: Request, stage: float) -> Hashable:
    if request.again:
        return request.uid
    where = (request.model.casefold(), request.offload, request.appliance, request.refused_by)
    return (request.namespace, stage, request.ask, request.placement, where)
