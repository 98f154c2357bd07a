"""Plans moves of claims after which fewer GPUs of a pool are in use. All functions are pure.

A plan empties whole GPUs, if possible all GPUs of an appliance, so that its node can be removed. A claim moves only to
a GPU of the same model and driver on another appliance that is already in use. No GPU is emptied that gets a claim in
the same plan, and the room on emptied GPUs is not used again. So each move fits whichever of the moves before it have
failed, with source and destination both booked. An empty GPU is used only by a move that empties another one.
"""

import itertools
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from remotegpu.api.quantities import MILLI_PER_GPU


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of a pool. Claims move only between GPUs of one `kind`: model and version of the driver."""

    appliance: str
    kind: tuple[str, int]
    size: int  # bytes that can be shared
    sessions: int  # the most sessions at a time
    time: int = MILLI_PER_GPU  # thousandths of its time that can be guaranteed
    closed: str = ""  # why no claim moves to it or from it; empty if claims do
    kept: bool = False  # its room is for a claim that can have no other, so no claim moves to it


@dataclass(frozen=True, slots=True)
class Place:
    """The part of one GPU that a claim has."""

    gpu: int  # index
    memory: int
    time: int = 0


@dataclass(frozen=True, slots=True)
class Tenant:
    """A claim with its places. During a move it has places at both the source and the destination."""

    uid: str
    places: tuple[Place, ...]
    sessions: int = 1  # on each of its GPUs, at least 1: an appliance keeps a place for the first one
    since: float = 0.0  # when its share last began, moved or grew, in seconds since 1970
    stays: str = ""  # why it does not move; empty if it may
    spread: bool = False  # asked for the emptiest GPU


@dataclass(frozen=True, slots=True)
class Step:
    """The move of a claim's places on `source` to the GPUs `to` of another appliance, in the order of the places."""

    uid: str
    source: str
    target: str
    to: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    steps: tuple[Step, ...]
    before: int  # GPUs in use now
    after: int  # GPUs in use when all steps have succeeded
    stays: Mapping[str, str]  # by uid: why each claim without a step is not moved


# The most GPUs that are looked at for one claim, so that a plan for a large pool takes seconds.
_MOST_LOOKED_AT: Final = 500
# The most GPUs for which several orders of emptying are tried.
_MOST_TRIED: Final = 2000


class Stays(StrEnum):
    """Why a claim is not moved, if nothing about the claim itself forbids it."""

    YOUNG = "its share, or one on its GPU, began, moved or grew a short time ago"
    BESIDE = "a claim on its GPU stays, so the GPU stays in use"
    TAKES = "its GPU takes in claims that move"
    KINDS = "its GPUs on one appliance have different models"
    ROOM = "no other appliance has room on GPUs of its model and driver that are in use for all claims of its GPU"
    MOVES = "to empty its GPU takes more moves than are left"


def plan(gpus: Sequence[Gpu], tenants: Iterable[Tenant], *, most: int, now: float, quiet: float) -> Plan:
    """Plans at most `most` moves.

    No GPU is emptied on which a share began, moved or grew in the last `quiet` seconds before `now`.
    """
    tenants = list(tenants)
    start = _Room(gpus, tenants, now, quiet)
    orders = _ORDERS if len(gpus) <= _MOST_TRIED else _ORDERS[:1]
    tried = [_tried(start.copy(), order, most) for order in orders]
    best = min(tried, key=_Room.score)
    moved = {step.uid for step in best.steps}
    stays = {each.uid: best.why(index) for index, each in enumerate(tenants) if each.uid not in moved}
    return Plan(tuple(best.steps), start.in_use, best.in_use, stays)


def holds(
    gpus: Sequence[Gpu],
    tenants: Iterable[Tenant],
    steps: Sequence[Step],
    used: Container[int],
    *,
    now: float,
    quiet: float,
) -> bool:
    """Whether the rest of an earlier plan, `steps`, keeps the rules in the present state, and still empties GPUs.

    `used` has the GPUs that were in use when it was planned. None of them that is empty now gets a claim.
    """
    tenants = list(tenants)
    room = _Room(gpus, tenants, now, quiet)
    numbers = {tenant.uid: number for number, tenant in enumerate(tenants)}
    sources: list[list[int]] = []
    for step in steps:
        number = numbers.get(step.uid)
        if number is None or any(gpu in used and not room.on[gpu] for gpu in step.to):
            return False
        if (left := room.carried_out(number, step)) is None:
            return False
        sources.append(left)
    return all(any(not room.on[gpu] and not room.fixed[gpu] for gpu in left) for left in sources)


class _Room:
    """The use of all GPUs in the course of a plan."""

    def __init__(self, gpus: Sequence[Gpu], tenants: list[Tenant], now: float, quiet: float) -> None:
        self.gpus, self.tenants = gpus, tenants
        self.steps: list[Step] = []
        self._moved = 0
        # Why an attempt to empty a GPU failed.
        self.refused: dict[int, str] = {}
        self.free = [gpu.size for gpu in gpus]
        self._time = [gpu.time for gpu in gpus]
        self._sessions = [gpu.sessions for gpu in gpus]
        self.on: list[set[int]] = [set() for _ in gpus]
        # Why a GPU cannot be emptied; empty if it can.
        self.fixed: list[str] = [gpu.closed for gpu in gpus]
        self._spread = {place.gpu for tenant in tenants if tenant.spread for place in tenant.places}
        self.appliances: dict[str, list[int]] = {}
        for index, gpu in enumerate(gpus):
            self.appliances.setdefault(gpu.appliance, []).append(index)
        for number, tenant in enumerate(tenants):
            for place in tenant.places:
                self._book(place.gpu, place, tenant.sessions, 1)
                self.on[place.gpu].add(number)
                if tenant.stays or self._bound(tenant, place.gpu):
                    self.fixed[place.gpu] = self.fixed[place.gpu] or Stays.BESIDE
                elif abs(now - tenant.since) < quiet:
                    self.fixed[place.gpu] = self.fixed[place.gpu] or Stays.YOUNG
        self._busy = Counter(gpu.appliance for gpu, on in zip(gpus, self.on, strict=True) if on)
        # For each kind the possible destinations as sorted (class, free bytes, GPU). GPUs that stay in use come first,
        # then those that could be emptied or whose claim asked for the emptiest, then empty ones; in each class the
        # fullest.
        self._orders: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        for index, gpu in enumerate(gpus):
            if _takes(gpu) and self._busy[gpu.appliance]:
                self._orders.setdefault(gpu.kind, []).append(self._key(index))
        for order in self._orders.values():
            order.sort()

    def copy(self) -> "_Room":
        made = _Room.__new__(_Room)
        made.gpus, made.tenants, made.appliances, made._busy = (
            self.gpus,
            self.tenants,
            self.appliances,
            self._busy.copy(),
        )
        made._spread = self._spread
        made.steps, made.free, made.fixed = list(self.steps), list(self.free), list(self.fixed)
        made.refused, made._moved = dict(self.refused), self._moved
        made._time, made._sessions, made.on = list(self._time), list(self._sessions), [set(each) for each in self.on]
        made._orders = {kind: list(order) for kind, order in self._orders.items()}
        return made

    @property
    def in_use(self) -> int:
        return self._busy.total()

    def score(self) -> tuple[int, int, int, int]:
        """Returns what a plan is to make small: appliances in use, GPUs in use, moved bytes, moves."""
        return (len(self._busy), self.in_use, self._moved, len(self.steps))

    def why(self, number: int) -> str:
        """Returns why a claim is not moved."""
        tenant = self.tenants[number]
        if tenant.stays:
            return tenant.stays
        gpus = [place.gpu for place in tenant.places]
        bound = (self._bound(tenant, gpu) for gpu in gpus)
        fixed, refused = (self.fixed[gpu] for gpu in gpus), (self.refused.get(gpu, "") for gpu in gpus)
        return next(filter(None, (*bound, *fixed, *refused)), Stays.ROOM)

    def empty(self, sources: list[int], left: int) -> Stays | None:
        """Moves all claims off the GPUs `sources` of one appliance, with at most `left` moves.

        Changes nothing and returns the reason if this is not possible, or leaves as many GPUs in use.
        """
        numbers = {number for gpu in sources for number in self.on[gpu]}
        if len(numbers) > left:
            return Stays.MOVES
        appliance, before = self.gpus[sources[0]].appliance, self.in_use
        done: list[tuple[int, Step]] = []
        for number in sorted(numbers, key=lambda number: self._size(number, appliance)):
            if (step := self._step(number, appliance)) is None:
                break
            self._move(number, step, 1)
            done.append((number, step))
        if len(done) < len(numbers) or self.in_use >= before:
            for number, step in reversed(done):
                self._move(number, step, -1)
            return Stays.ROOM
        for number, step in done:
            # A claim moves once in a plan, so what it has on other appliances stays.
            others = (place.gpu for place in self.tenants[number].places if self.gpus[place.gpu].appliance != appliance)
            for gpu in (*step.to, *others):
                self._fix(gpu)
            self.steps.append(step)
            self._moved += sum(place.memory for place in self._places_at(number, appliance))
        return None

    def carried_out(self, number: int, step: Step) -> list[int] | None:
        """Books a step of an earlier plan, and returns the GPUs that the claim leaves; None if it does not fit."""
        tenant, places = self.tenants[number], self._places_at(number, step.source)
        sources = [place.gpu for place in places]
        there = self.gpus[step.to[0]].appliance if step.to else ""
        elsewhere = all(self.gpus[place.gpu].appliance != there for place in tenant.places)
        if tenant.stays or not places or len(places) != len(step.to) or not elsewhere or not self._busy[there]:
            return None
        for place, gpu in zip(places, step.to, strict=True):
            suits = self.gpus[gpu].kind == self.gpus[place.gpu].kind and _takes(self.gpus[gpu])
            room = self.free[gpu] >= place.memory and self._time[gpu] >= place.time
            if self.gpus[place.gpu].closed or not suits or not room or self._sessions[gpu] < tenant.sessions:
                return None
        self._move(number, step, 1)
        return sources

    def bytes_on(self, gpu: int) -> int:
        return self.gpus[gpu].size - self.free[gpu]

    def _size(self, number: int, appliance: str) -> tuple[int, int, int]:
        """Returns the sort key of the claims of one appliance: what is hard to place comes first."""
        places = self._places_at(number, appliance)
        return (-len(places), -max(place.memory for place in places), number)

    def _places_at(self, number: int, appliance: str) -> list[Place]:
        return [each for each in self.tenants[number].places if self.gpus[each.gpu].appliance == appliance]

    def _bound(self, tenant: Tenant, gpu: int) -> str:
        """Returns why the claim cannot leave the appliance of `gpu`; empty if it can."""
        here = [
            self.gpus[each.gpu] for each in tenant.places if self.gpus[each.gpu].appliance == self.gpus[gpu].appliance
        ]
        if any(each.kind != here[0].kind for each in here):
            return Stays.KINDS
        return next((each.closed for each in here if each.closed), "")

    def _step(self, number: int, appliance: str) -> Step | None:
        """Returns the move of a claim to the GPUs of another appliance that suit it best; None if none have room."""
        tenant, places = self.tenants[number], self._places_at(number, appliance)
        taken = {self.gpus[each.gpu].appliance for each in tenant.places}
        memory, time = max(each.memory for each in places), max(each.time for each in places)
        alone = sum(len(self.on[each.gpu]) == 1 for each in places)
        found: dict[str, list[int]] = {}
        destinations = self._destinations(self.gpus[places[0].gpu].kind, memory, empty=alone > 0)
        for gpu in itertools.islice(destinations, _MOST_LOOKED_AT):
            target = self.gpus[gpu].appliance
            if target in taken or self._time[gpu] < time or self._sessions[gpu] < tenant.sessions:
                continue
            here = found.setdefault(target, [])
            if not self.on[gpu] and (not self._busy[target] or sum(not self.on[each] for each in here) >= alone):
                continue
            here.append(gpu)
            if len(here) == len(places):
                return Step(tenant.uid, appliance, target, tuple(here))
        return None

    def _destinations(self, kind: tuple[str, int], memory: int, *, empty: bool) -> Iterator[int]:
        order = self._orders.get(kind, [])
        for rank in range(3 if empty else 2):
            for place in range(bisect_left(order, (rank, memory)), len(order)):
                if order[place][0] != rank:
                    break
                yield order[place][2]

    def _move(self, number: int, step: Step, sign: int) -> None:
        """Books a move, or with `sign` -1 undoes it. What the claim has at its source stays booked."""
        places = self._places_at(number, step.source)
        for place, gpu in zip(places, step.to, strict=True):
            self._take_out(gpu)
            self._book(gpu, place, self.tenants[number].sessions, sign)
            self._count(gpu, number, sign)
            self._put_in(gpu)
        for place in places:
            self._take_out(place.gpu)
            self._count(place.gpu, number, -sign)
            # The room on an emptied GPU is not used again.
            if self.on[place.gpu]:
                self._put_in(place.gpu)

    def _count(self, gpu: int, number: int, sign: int) -> None:
        """Adds a claim to a GPU, or removes it."""
        had = bool(self.on[gpu])
        (self.on[gpu].add if sign > 0 else self.on[gpu].discard)(number)
        if had != bool(self.on[gpu]):
            appliance = self.gpus[gpu].appliance
            self._busy[appliance] += sign
            if not self._busy[appliance]:
                del self._busy[appliance]

    def _book(self, gpu: int, place: Place, sessions: int, sign: int) -> None:
        self.free[gpu] -= sign * place.memory
        self._time[gpu] -= sign * place.time
        self._sessions[gpu] -= sign * sessions

    def _fix(self, gpu: int) -> None:
        """Keeps a GPU that got a claim from being emptied."""
        if not self.fixed[gpu] and self.on[gpu]:
            self._take_out(gpu)
            self.fixed[gpu] = Stays.TAKES
            self._put_in(gpu)

    def _put_in(self, gpu: int) -> None:
        if _takes(self.gpus[gpu]):
            insort(self._orders[self.gpus[gpu].kind], self._key(gpu))

    def _take_out(self, gpu: int) -> None:
        order, key = self._orders.get(self.gpus[gpu].kind, []), self._key(gpu)
        place = bisect_left(order, key)
        if order[place : place + 1] == [key]:
            del order[place]

    def _key(self, gpu: int) -> tuple[int, int, int]:
        stays = self.fixed[gpu] and gpu not in self._spread
        return (0 if stays else 1 if self.on[gpu] or self.fixed[gpu] else 2, self.free[gpu], gpu)


def _takes(gpu: Gpu) -> bool:
    return not gpu.closed and not gpu.kept


# The sort key of GPUs to empty: of a GPU's number of claims, its booked bytes, and its index.
_Order = Callable[[int, int, int], tuple[float, ...]]
_ORDERS: Final[tuple[_Order, ...]] = (
    lambda claims, booked, index: (claims, booked, index),
    lambda claims, booked, index: (booked, claims, index),
    lambda claims, booked, index: (booked / claims, booked, index),
)


def _tried(room: _Room, order: _Order, most: int) -> _Room:
    """Empties first whole appliances, then single GPUs, in the order of `order`."""
    whole: list[list[int]] = []
    for indices in room.appliances.values():
        busy = [gpu for gpu in indices if room.on[gpu]]
        if busy and not any(room.fixed[gpu] for gpu in busy):
            whole.append(busy)
    single = [[gpu] for gpu, on in enumerate(room.on) if on and not room.fixed[gpu]]
    for sources in (whole, single):
        for each in sorted(sources, key=lambda gpus: order(*_load(room, gpus))):
            if all(room.on[gpu] and not room.fixed[gpu] for gpu in each):
                why = room.empty(each, most - len(room.steps))
                if why is not None:
                    room.refused |= dict.fromkeys(each, why)
    return room


def _load(room: _Room, gpus: list[int]) -> tuple[int, int, int]:
    claims = {number for gpu in gpus for number in room.on[gpu]}
    return (max(1, len(claims)), sum(map(room.bytes_on, gpus)), gpus[0])
