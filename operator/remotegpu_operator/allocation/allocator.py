"""The allocator: inventory, ledger and queues, kept up to date event by event, and the decisions that follow.

Time is told, never asked for: what waits reserves what it waits for only for so long (`remotegpu.api.reservations`).
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from remotegpu.api.claims import Allocation, Placement, Reason
from remotegpu.api.pools import Amount, ApplianceStatus, GpuStatus
from remotegpu.api.quantities import MILLI_PER_GPU, Ask, format_bytes, format_milli
from remotegpu_operator.allocation.decisions import Decision, Placed, Request, Waiting
from remotegpu_operator.allocation.fit import Fit, choose
from remotegpu_operator.allocation.inventory import Candidates, Inventory, Slot, charge, mixed_memory, some
from remotegpu_operator.allocation.ledger import Ledger
from remotegpu_operator.allocation.victims import victims
from remotegpu_operator.allocation.waits import Waits


@dataclass(frozen=True, slots=True)
class Capacity:
    """A pool in numbers, for its status."""

    total: Amount
    allocated: Amount
    free: Amount
    mixed_memory: str
    appliances: tuple[ApplianceStatus, ...]


@dataclass(frozen=True, slots=True)
class _Refused:
    """Why a request gets nothing. Without `said` the sentence is about free memory, made when somebody wants it."""

    request: Request
    reason: Reason
    said: str = ""
    mask: int = 0
    ahead: int = 0


class _Walk:
    """One walk through a queue: which GPUs are kept for requests that came before, and what each GPU has free."""

    def __init__(self, free: list[int]) -> None:
        self.free = free
        # From everybody, and from a namespace.
        self.kept = 0
        self._kept_within: Counter[str] = Counter()
        # By namespace: the GPUs that it has something of.
        self.held: dict[str, int] = {}
        self._keeps: Counter[tuple[int, str]] = Counter()

    def keep(self, mask: int, within: str) -> None:
        """Keep GPUs for a request; `within`: only from others of this namespace, from everybody if it is empty."""
        if within:
            self._kept_within[within] |= mask
        else:
            self.kept |= mask
        self._keeps[mask, within] += 1

    def kept_from(self, namespace: str) -> int:
        return self.kept | self._kept_within[namespace]

    def ahead(self, mask: int, namespace: str) -> int:
        return sum(count for (kept, whose), count in self._keeps.items() if kept & mask and whose in ("", namespace))


class Allocator:
    def __init__(self) -> None:
        self._inventories: dict[str, Inventory] = {}
        self._quotas: dict[str, dict[str, int]] = {}
        self._ledger = Ledger()
        self._queues: dict[str, list[Request]] = {}
        self._waiting: dict[str, Request] = {}
        self._reported: dict[str, Reason] = {}
        # Pools whose queue may have something new to say.
        self._unsettled: set[str] = set()
        self._waits = Waits()

    def set_time(self, now: float) -> None:
        """What time it is, in seconds since 1970."""
        if self._waits.set_time(now):
            self._unsettled.update(self._queues)

    @property
    def next_change(self) -> float:
        """From when on there may be something new to settle though nothing has happened."""
        return self._waits.next_change

    def set_pool(
        self,
        name: str,
        appliances: Iterable[ApplianceStatus],
        *,
        divides_time: bool = False,
        namespaces: Iterable[str] = (),
    ) -> None:
        """The whole inventory of a pool, whether it changed or not.

        `divides_time`: what claims are guaranteed of a GPU's time is together at most all of it. `namespaces`: whose
        claims it serves; none named: all.
        """
        inventory = Inventory.of(name, appliances, divides_time=divides_time, namespaces=namespaces)
        if self._inventories.get(name) != inventory:
            self._inventories[name] = inventory
            self._unsettled.add(name)

    def remove_pool(self, name: str) -> None:
        if self._inventories.pop(name, None) is not None:
            self._unsettled.add(name)

    def set_quotas(self, namespace: str, hard: Mapping[str, int]) -> None:
        """The thousandths that each ResourceQuota of the namespace allows; none for no limit."""
        if self._quotas.get(namespace, {}) != hard:
            self._quotas[namespace] = dict(hard)
            self._unsettled.update(self._queues)

    def hold(self, request: Request, allocations: Iterable[Allocation]) -> None:
        """A claim whose status says that it has these GPUs. It is believed: its pod may be at work on them."""
        self._end_wait(request.uid)
        self._ledger.put(request, allocations)
        self._unsettle(request)

    def submit(self, request: Request) -> None:
        """A claim that wants its GPUs, or wants them with another priority; nothing new if it is known like that."""
        placed = self._ledger.get(request.uid) is not None and not request.again
        if placed or self._waiting.get(request.uid) == request:
            return
        reported = self._reported.get(request.uid)
        self._forget_waiting(request.uid)
        if reported is not None:
            self._reported[request.uid] = reported
        self._waiting[request.uid] = request
        self._waits.begin(request)
        insort(self._queues.setdefault(request.pool, []), request, key=_turn)
        self._unsettled.add(request.pool)

    def release(self, uid: str) -> None:
        """The claim is gone, or has no right to its GPUs any more; unknown ones are no error."""
        request = self._end_wait(uid)
        entry = self._ledger.take(uid)
        if request is not None:
            self._unsettled.add(request.pool)
        if entry is not None:
            self._unsettle(entry.request)

    def settle(self) -> list[Decision]:
        """Place what fits now; and tell each request that has to wait why, once for each reason."""
        walked: set[str] = set()
        decisions: list[Decision] = list(self._place_all(walked))
        for pool in sorted(walked):
            for refused in self._refusals(pool):
                if self._reported.get(refused.request.uid) != refused.reason:
                    self._reported[refused.request.uid] = refused.reason
                    decisions.append(Waiting(refused.request, refused.reason, self._sentence(refused)))
        return decisions

    def place(self) -> list[Placed]:
        """What `settle` places. Those that have to wait are told nothing, now or by a later `settle`."""
        return list(self.placing())

    def placing(self) -> Iterator[Placed]:
        """The same one by one, for those who stop at what they looked for, and leave the rest undone."""
        return self._place_all(set())

    def copy(self) -> "Allocator":
        """One that knows the same; what it decides and hears from now on is its own."""
        made = Allocator()
        made._inventories = dict(self._inventories)
        made._quotas = dict(self._quotas)
        made._ledger = self._ledger.copy()
        made._queues = {pool: list(queue) for pool, queue in self._queues.items()}
        made._waiting = dict(self._waiting)
        made._reported = dict(self._reported)
        made._unsettled = set(self._unsettled)
        made._waits = self._waits.copy()
        return made

    def victims(self, pool: str, before: Mapping[str, str]) -> dict[str, str]:
        """The claims that shall give their shares to ones of higher priority that wait: see `victims.victims`."""
        inventory = self._inventories.get(pool)
        if inventory is None:
            return {}
        waiting = [each.request for each in self._refusals(pool) if each.reason is Reason.WAITING_FOR_CAPACITY]
        return victims(inventory, self._ledger, waiting, before)

    def elsewhere(self, uid: str, source: str, target: str) -> tuple[Allocation, ...] | str:
        """GPUs of another appliance (only of `target`, if it is named) that can take what a claim has on `source`, with
        as much memory, for a suspended one as much as it asks for; or why there are none. Those that wait for a share
        are not asked: this one has its own already.
        """
        entry = self._ledger.get(uid)
        if entry is None or (inventory := self._inventories.get(entry.request.pool)) is None:
            return "its pool is not known"
        if target and all(appliance.name != target for appliance in inventory.appliances):
            return inventory.no_appliance(target)
        mine = [each for each in entry.allocations if each.appliance == source]
        if entry.request.again:
            indices = inventory.slots_at((each.appliance, each.gpu) for each in mine)
            mine = [_allocation(inventory.slots[index], entry.request.ask) for index in indices]
            if said := self._over_quota(entry.request, sum(each.milli for each in mine)):
                return f"QuotaExceeded: {said}"
        taken = {each.appliance for each in entry.allocations}
        fitting: list[tuple[int, str, tuple[Allocation, ...]]] = []
        for name in {slot.appliance for slot in inventory.slots} - taken:
            slots = [
                slot
                for slot in inventory.slots
                if slot.appliance == name and target in ("", name) and self._has_time(inventory, entry.request, slot)
            ]
            if (found := self._like(mine, slots)) is not None:
                left = sum(self._free(slot) for slot in slots if any(slot.gpu.uuid == each.gpu for each in found))
                fitting.append((left, name, found))
        if fitting:
            return min(fitting)[2]
        wanted = " and ".join(f"{format_bytes(each.memory)} of {each.model}" for each in mine)
        who = f"{target} has not" if target else f"no other appliance of pool {entry.request.pool} has"
        return f"NoRoom: {who} {wanted} free"

    def resized(self, request: Request) -> tuple[Allocation, ...] | str:
        """What a claim has, as large as it asks for now; or why it does not get so much. What it has already is not
        asked for again, and others that wait come first."""
        entry, inventory = self._ledger.get(request.uid), self._inventories.get(request.pool)
        if entry is None or inventory is None:
            return "its pool is not known"
        indices = inventory.slots_at((each.appliance, each.gpu) for each in entry.allocations)
        if not len(indices) == len(entry.allocations) == request.ask.count:
            return "its GPUs are not all there"
        pairs = zip(indices, entry.allocations, strict=True)
        # A GPU may share a little more or less than when it was given: that alone changes nothing.
        wanted = tuple(
            has if _is(has, request.ask) else _allocation(inventory.slots[index], request.ask) for index, has in pairs
        )
        more = [each.memory - has.memory for each, has in zip(wanted, entry.allocations, strict=True)]
        milli = sum(each.milli for each in wanted) - entry.milli
        over_quota = milli > 0 and self._over_quota(request, milli)
        return (
            over_quota
            or self._no_room(inventory, request, indices, more)
            or self._no_time(inventory, request, indices)
            or wanted
        )

    def _no_time(self, inventory: Inventory, request: Request, indices: list[int]) -> str:
        """Of which GPU a claim of this size cannot have as much time; empty if of none."""
        for slot in (inventory.slots[index] for index in indices):
            if not self._has_time(inventory, request, slot):
                return f"NoRoom: as much of the time of {slot.gpu.uuid} of {slot.appliance} is not free"
        return ""

    def _has_time(self, inventory: Inventory, request: Request, slot: Slot) -> bool:
        """Is as much of the GPU's time free as the request is guaranteed there? It is where nobody divides it."""
        return not inventory.divides_time or self._time(request, slot) <= self._free_time(request, slot)

    def _time(self, request: Request, slot: Slot) -> int:
        shareable = slot.gpu.shareable
        return request.ask.compute.guaranteed(request.ask.bytes_of(shareable), shareable)

    def _free_time(self, request: Request, slot: Slot) -> int:
        return MILLI_PER_GPU - self._ledger.guaranteed_to_others(request.uid, slot.appliance, slot.gpu)

    def _no_room(self, inventory: Inventory, request: Request, indices: list[int], more: list[int]) -> str:
        """Why a claim does not get so many more bytes of GPUs that it has; empty if it can."""
        # Nearly always nothing is asked for, and to look through the queue for each claim would be slow.
        if all(size <= 0 for size in more):
            return ""
        walk = _Walk([])
        queue = self._queues.get(inventory.pool, ())
        for each in queue:
            self._keep(inventory, each, inventory.candidates(each).mask, walk)
        kept = walk.kept_from(request.namespace)
        for index, size in zip(indices, more, strict=True):
            slot = inventory.slots[index]
            name = f"{slot.gpu.uuid} of {slot.appliance}"
            if size > 0 and kept >> index & 1:
                return f"NoRoom: what {name} has free is for claims that wait"
            left = slot.gpu.shareable - self._ledger.memory(slot.appliance, slot.gpu.uuid)
            if size > left:
                return f"NoRoom: {format_bytes(size)} more of {name} are not free, {format_bytes(max(0, left))} are"
        return ""

    def _like(self, mine: Iterable[Allocation], slots: Iterable[Slot]) -> tuple[Allocation, ...] | None:
        """For each of them as much of a GPU of the same model, of different ones."""
        free, found = list(slots), []
        for each in mine:
            fits = [slot for slot in free if slot.gpu.model == each.model and self._free(slot) >= each.memory]
            if not fits:
                return None
            slot = min(fits, key=lambda fit: (self._free(fit), fit.gpu.uuid))
            free.remove(slot)
            found.append(replace(each, appliance=slot.appliance, node=slot.node, gpu=slot.gpu.uuid))
        return tuple(found)

    def waiting(self) -> list[Request]:
        """All that wait, pool by pool, in the order in which they are served."""
        return [request for _, queue in sorted(self._queues.items()) for request in queue]

    def held(self, uid: str) -> tuple[Allocation, ...] | None:
        entry = self._ledger.get(uid)
        return None if entry is None else entry.allocations

    def message(self, uid: str) -> str:
        """Why the request waits, as of now; empty if it does not."""
        request = self._waiting.get(uid)
        if request is None:
            return ""
        refusals = {refused.request.uid: refused for refused in self._refusals(request.pool)}
        # It has none if it only waits for `settle`.
        return self._sentence(refusals[uid]) if uid in refusals else ""

    def capacity(self, pool: str) -> Capacity:
        """What a pool has; nothing, if it is not known."""
        inventory = self._inventories.get(pool) or Inventory.of(pool, ())
        total, allocated, free = [0, 0], [0, 0], [0, 0]
        for slot in inventory.slots:
            used = self._ledger.memory(slot.appliance, slot.gpu.uuid)
            milli = _used_milli(slot.gpu, used)
            _add(total, MILLI_PER_GPU, slot.gpu.shareable)
            _add(allocated, milli, used)
            if not slot.closed:
                _add(free, MILLI_PER_GPU - milli, max(0, slot.gpu.shareable - used))
        return Capacity(
            _amount(*total),
            _amount(*allocated),
            _amount(*free),
            mixed_memory(slot.gpu for slot in inventory.slots),
            tuple(self._with_usage(appliance) for appliance in inventory.appliances),
        )

    def _place_all(self, walked: set[str]) -> Iterator[Placed]:
        """Adds the pools whose queues it walks through to `walked`."""
        while self._unsettled:
            pool = min(self._unsettled)
            self._unsettled.remove(pool)
            walked.add(pool)
            yield from self._place(pool)

    def _place(self, pool: str) -> Iterator[Placed]:
        """One walk through the queue."""
        queue, inventory = list(self._queues.get(pool, ())), self._inventories.get(pool)
        if not queue or inventory is None:
            return
        walk = self._walk(inventory)
        for request in queue:
            if walk.kept == inventory.mask and self._waits.heeds(request):
                continue  # every GPU is kept for somebody before
            outcome = self._try(request, walk)
            if isinstance(outcome, Placed):
                self._end_wait(request.uid)
                self._ledger.put(request, outcome.allocations)
                walk.held.pop(request.namespace, None)
                for index in inventory.slots_at((each.appliance, each.gpu) for each in outcome.allocations):
                    walk.free[index] = self._free(inventory.slots[index])
                self._unsettle_namespace(request.namespace)
                yield outcome

    def _refusals(self, pool: str) -> Iterator[_Refused]:
        """The same walk, which changes nothing."""
        queue = self._queues.get(pool)
        if not queue:
            return
        walk = self._walk(self._inventories.get(pool))
        for request in queue:
            outcome = self._try(request, walk)
            if isinstance(outcome, _Refused):
                yield outcome

    def _walk(self, inventory: Inventory | None) -> _Walk:
        return _Walk([self._free(slot) for slot in inventory.slots] if inventory else [])

    def _try(self, request: Request, walk: _Walk) -> Placed | _Refused:
        inventory = self._inventories.get(request.pool)
        if inventory is None:
            pools = some(sorted(self._inventories)) or "none"
            said = f"there is no GPUPool {request.pool}: create it, or name another one; there are: {pools}"
            return _Refused(request, Reason.NO_SUCH_POOL, said)
        try_it = self._try_again if request.again else self._try_anew
        return try_it(inventory, request, walk)

    def _try_anew(self, inventory: Inventory, request: Request, walk: _Walk) -> Placed | _Refused:
        """On the GPUs that suit it best."""
        if inventory.namespaces and request.namespace not in inventory.namespaces:
            said = f"pool {inventory.pool} is for other namespaces than {request.namespace}: name another pool"
            return _Refused(request, Reason.NAMESPACE_NOT_ALLOWED, said)
        candidates = inventory.candidates(request)
        if not candidates.slots:
            return _Refused(request, candidates.reason, candidates.message)
        if said := self._over_quota(request, candidates.charge):
            return _Refused(request, Reason.QUOTA_EXCEEDED, said)
        chosen, kept = None, self._kept_from(request, walk)
        if (candidates.mask & ~kept).bit_count() >= request.ask.count:
            chosen = self._chosen(inventory, candidates, request, walk.free, kept)
        if chosen is None:
            refused = _Refused(
                request,
                Reason.WAITING_FOR_CAPACITY,
                mask=candidates.mask,
                ahead=walk.ahead(candidates.mask, request.namespace),
            )
            # What even the empty pool could not serve while GPUs are out of service must not stop the others.
            if candidates.open >= request.ask.count:
                self._keep(inventory, request, candidates.mask, walk)
            return refused
        allocations = tuple(_allocation(inventory.slots[index], request.ask) for index in chosen)
        if said := self._over_quota(request, sum(allocation.milli for allocation in allocations)):
            return _Refused(request, Reason.QUOTA_EXCEEDED, said)
        return Placed(request, allocations)

    def _try_again(self, inventory: Inventory, request: Request, walk: _Walk) -> Placed | _Refused:
        """On the GPUs that it had: its programs are there, and wait."""
        indices = inventory.slots_at(request.again)
        if len(indices) < len(request.again):
            there = {inventory.slots[index].gpu.uuid for index in indices}
            missing = next(gpu for _, gpu in request.again if gpu not in there)
            said = f"{missing}, on which its programs wait, is not there"
            return _Refused(request, Reason.WAITING_FOR_CAPACITY, said)
        mask = sum(1 << index for index in indices)
        kept = mask & self._kept_from(request, walk)
        allocations = tuple(_allocation(inventory.slots[index], request.ask) for index in indices)
        if said := self._over_quota(request, sum(allocation.milli for allocation in allocations)):
            return _Refused(request, Reason.QUOTA_EXCEEDED, said)
        for index, wanted in zip(indices, allocations, strict=True):
            slot = inventory.slots[index]
            left = slot.gpu.shareable - self._ledger.memory_of_others(request.uid, slot.appliance, wanted.gpu)
            if slot.broken or left < wanted.memory or kept:
                free = slot.broken or f"{format_bytes(max(0, left))} of it is free"
                queue = f", {walk.ahead(mask, request.namespace)} ahead" if kept else ""
                said = f"{request.ask} of {wanted.gpu} on {wanted.appliance}, where its programs wait: {free}{queue}"
                self._keep(inventory, request, mask, walk)
                return _Refused(request, Reason.WAITING_FOR_CAPACITY, said, mask=mask)
        if said := self._no_time(inventory, request, indices):
            self._keep(inventory, request, mask, walk)
            return _Refused(request, Reason.WAITING_FOR_CAPACITY, said, mask=mask)
        return Placed(request, allocations)

    def _kept_from(self, request: Request, walk: _Walk) -> int:
        """The GPUs that are kept for requests before this one."""
        return walk.kept_from(request.namespace) if self._waits.heeds(request) else 0

    def _keep(self, inventory: Inventory, request: Request, mask: int, walk: _Walk) -> None:
        """Keep the GPUs that a request waits for from those behind it, as far as it reserves them at this time."""
        # What waits for its own GPUs again waits for nobody of its own.
        holds = not request.again and bool(self._held(inventory, request.namespace, walk) & mask)
        if self._waits.reserves(request, holds=holds):
            walk.keep(mask, within="")
        elif self._waits.reserves_within_namespace(request):
            walk.keep(mask, within=request.namespace)

    def _held(self, inventory: Inventory, namespace: str, walk: _Walk) -> int:
        """The GPUs of which the namespace has something."""
        if (mask := walk.held.get(namespace)) is None:
            indices = inventory.slots_at(self._ledger.gpus_of(namespace))
            mask = walk.held[namespace] = sum(1 << index for index in indices)
        return mask

    def _chosen(
        self, inventory: Inventory, candidates: Candidates, request: Request, free: list[int], kept: int
    ) -> list[int] | None:
        """The GPUs that it gets; None if there are not enough."""
        room = self._room(inventory, candidates, request, free, kept)
        if request.ask.count == 1 and request.placement is Placement.PACK:
            # What nearly all claims ask for: the tightest, which `choose` would take too, as slots stand in its order.
            return [min(room)[1]] if room else None
        fits = (Fit(left, inventory.slots[index].appliance, index) for left, index in room)
        chosen = choose(fits, request.ask.count, request.placement)
        return None if chosen is None else sorted(fit.slot for fit in chosen)

    def _room(
        self, inventory: Inventory, candidates: Candidates, request: Request, free: list[int], kept: int
    ) -> list[tuple[int, int]]:
        """The GPUs that have room for the request and are not kept for another one: bytes that would be left, index."""
        # By far the most steps of an allocator are made here.
        room = [
            (free[index] - size, index)
            for index, size in zip(candidates.slots, candidates.sizes, strict=True)
            if free[index] >= size and not kept >> index & 1
        ]
        if not inventory.divides_time:
            return room
        return [each for each in room if self._has_time(inventory, request, inventory.slots[each[1]])]

    def _free(self, slot: Slot) -> int:
        return -1 if slot.closed else slot.gpu.shareable - self._ledger.memory(slot.appliance, slot.gpu.uuid)

    def _over_quota(self, request: Request, milli: int) -> str:
        """Which ResourceQuota forbids so many thousandths more; empty if none does."""
        quotas = self._quotas.get(request.namespace)
        if not quotas:
            return ""
        has = self._ledger.milli(request.namespace)
        for name, hard in sorted(quotas.items()):
            if has + milli > hard:
                return (
                    f"{format_milli(milli)} of a GPU is more than ResourceQuota {name} leaves: it allows namespace "
                    f"{request.namespace} {format_milli(hard)}, and the claims there have {format_milli(has)}"
                )
        return ""

    def _sentence(self, refused: _Refused) -> str:
        if refused.said:
            return refused.said
        request, inventory = refused.request, self._inventories[refused.request.pool]
        queue = f"{refused.ahead} {'claim' if refused.ahead == 1 else 'claims'} ahead"
        candidates = inventory.candidates(request)
        roomy = len(self._room(inventory, candidates, request, self._walk(inventory).free, 0))
        if roomy >= request.ask.count:
            return f"{request.ask} is free in pool {request.pool}, but kept for {queue}"
        slots = [inventory.slots[index] for index in candidates.slots]
        most = max(slots, key=self._free)
        free = max(0, self._free(most))
        whose = "its GPU has" if len(slots) == 1 else f"of its {len(slots)} GPUs"
        if request.ask.count > 1:
            room = f"{whose} {roomy} {'has' if roomy == 1 else 'have'} as much free"
        elif not free:
            room = f"{whose} {'nothing' if len(slots) == 1 else 'none has anything'} free"
        else:
            part = f"{format_milli(free * MILLI_PER_GPU // most.gpu.shareable)} ({format_bytes(free)})"
            room = f"{whose} {part} free" if len(slots) == 1 else f"{whose} the emptiest has {part} free"
        if inventory.divides_time and not all(self._has_time(inventory, request, slot) for slot in slots):
            time = max(self._free_time(request, slot) for slot in slots)
            room += f", and {format_milli(max(0, time))} of the time of a GPU is free"
        said = f"{request.ask} is not free in pool {request.pool}: {room}"
        closed = some(dict.fromkeys(slot.closed for slot in slots if slot.closed), 2)
        return "; ".join([said, *([closed] if closed else []), *([queue] if refused.ahead else [])])

    def _unsettle(self, request: Request) -> None:
        """What the request has of its pool has changed."""
        self._unsettled.add(request.pool)
        self._unsettle_namespace(request.namespace)

    def _unsettle_namespace(self, namespace: str) -> None:
        """What the namespace has has changed; where it is limited, that matters to its requests in every pool."""
        if self._quotas.get(namespace):
            self._unsettled.update(self._queues)

    def _end_wait(self, uid: str) -> Request | None:
        """It waits no more; one that is submitted again goes on waiting."""
        self._waits.end(uid)
        return self._forget_waiting(uid)

    def _forget_waiting(self, uid: str) -> Request | None:
        self._reported.pop(uid, None)
        request = self._waiting.pop(uid, None)
        if request is not None:
            queue = self._queues[request.pool]
            del queue[bisect_left(queue, request.turn, key=_turn)]
        return request

    def _with_usage(self, appliance: ApplianceStatus) -> ApplianceStatus:
        gpus = []
        for gpu in appliance.gpus:
            used = self._ledger.memory(appliance.name, gpu.uuid)
            gpus.append(replace(gpu, allocated_memory=used, allocated_milli=_used_milli(gpu, used)))
        return replace(appliance, gpus=tuple(gpus))


def _turn(request: Request) -> tuple[int, str, str, str, str]:
    return request.turn


def _is(allocation: Allocation, ask: Ask) -> bool:
    return allocation.memory == ask.memory_bytes if ask.memory_bytes else allocation.milli == ask.milli_per_gpu


def _allocation(slot: Slot, ask: Ask) -> Allocation:
    return Allocation(
        appliance=slot.appliance,
        node=slot.node,
        gpu=slot.gpu.uuid,
        model=slot.gpu.model,
        memory=ask.bytes_of(slot.gpu.shareable),
        milli=charge(ask, slot.gpu),
    )


def _used_milli(gpu: GpuStatus, used: int) -> int:
    """Thousandths of a GPU that are not free any more: a share fits whenever there are as many thousandths free."""
    free = max(0, gpu.shareable - used)
    return MILLI_PER_GPU - free * MILLI_PER_GPU // gpu.shareable if gpu.shareable else MILLI_PER_GPU


def _amount(milli: int, memory: int) -> Amount:
    """For people, hence whole MiB; the exact bytes are in the appliances."""
    return Amount(milli, memory >> 20 << 20)


def _add(amount: list[int], milli: int, memory: int) -> None:
    amount[0] += milli
    amount[1] += memory
