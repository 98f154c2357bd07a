"""The allocator: keeps inventories, the ledger and the queues up to date, and decides which requests get GPUs.

The allocator reads no clock: callers set the time. A waiting request reserves GPUs only for a limited time
(`remotegpu.api.reservations`).
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from remotegpu.api import reservations
from remotegpu.api.claims import Allocation, Placement, Reason
from remotegpu.api.pools import Amount, ApplianceStatus, GpuStatus
from remotegpu.api.quantities import MILLI_PER_GPU, Ask, format_bytes, format_milli
from remotegpu_operator.allocation.decisions import Decision, Placed, Request, Waiting
from remotegpu_operator.allocation.fit import Fit, choose
from remotegpu_operator.allocation.inventory import Candidates, Inventory, Slot, charge, mixed_memory, some
from remotegpu_operator.allocation.ledger import Ledger
from remotegpu_operator.allocation.packing_state import About, PackingState
from remotegpu_operator.allocation.queue import Group, Queue, Walk, turn_of
from remotegpu_operator.allocation.rooms import Rooms, free_bytes
from remotegpu_operator.allocation.victims import victims
from remotegpu_operator.allocation.waits import Waits


@dataclass(frozen=True, slots=True)
class Capacity:
    """A pool's amounts, for the pool's status. `mixed_memory` is as from `inventory.mixed_memory`."""

    total: Amount
    allocated: Amount
    free: Amount
    mixed_memory: str
    appliances: tuple[ApplianceStatus, ...]


@dataclass(frozen=True, slots=True)
class _Refused:
    """The reason why a group of requests gets no GPU.

    `said` is the message. If `said` is empty, `_sentence` builds a message about free memory. `mask` has the GPUs that
    suit the group, as bits.
    """

    reason: Reason
    said: str = ""
    mask: int = 0


# A walk through a queue, and the groups that it refused.
_Walked = tuple[Walk, list[tuple[Group, _Refused]]]


class Allocator:
    """Decides which claim gets which GPUs, and which claims wait for what. Pure: time is given by `set_time`.

    >>> from remotegpu.api.pools import AppliancePhase
    >>> gpu = GpuStatus("GPU-1", "H100", memory=80 << 30, shareable=80 << 30)
    >>> allocator = Allocator()
    >>> allocator.set_pool("default", [ApplianceStatus("one", "node-1", AppliancePhase.READY, gpus=(gpu,))])
    >>> for uid, milli in (("a", 750), ("b", 500)):
    ...     allocator.submit(Request(uid, "default", uid, "default", Ask(1, milli)))
    >>> [(type(each).__name__, each.request.uid) for each in allocator.settle()]
    [('Placed', 'a'), ('Waiting', 'b')]
    >>> allocator.release("a")
    >>> [each.allocations[0].gpu for each in allocator.settle()]
    ['GPU-1']
    """

    def __init__(self) -> None:
        self._inventories: dict[str, Inventory] = {}
        self._quotas: dict[str, dict[str, int]] = {}
        self._ledger = Ledger()
        # By pool, created on first use.
        self._rooms: dict[str, Rooms] = {}
        self._queues: dict[str, Queue] = {}
        self._waiting: dict[str, Request] = {}
        self._reported: dict[str, Reason] = {}
        # Pools whose queue must be examined again.
        self._unsettled: set[str] = set()
        self._waits = Waits()

    def set_time(self, now: float) -> None:
        """Sets the current time, in seconds since 1970."""
        for uid in self._waits.set_time(now):
            request = self._waiting[uid]
            queue = self._queues[request.pool]
            queue.remove(request)
            queue.add(request, self._waits.stage(uid))
            self._unsettled.add(request.pool)

    @property
    def next_change(self) -> float:
        """The time from which `settle` may return new decisions without any other change, in seconds since 1970.

        Infinity if there is no such time.
        """
        return self._waits.next_change

    def set_pool(
        self,
        name: str,
        appliances: Iterable[ApplianceStatus],
        *,
        divides_time: bool = False,
        namespaces: Iterable[str] = (),
    ) -> None:
        """Sets the complete inventory of a pool. An unchanged inventory has no effect.

        With `divides_time` the claims on a GPU are together guaranteed at most all of the GPU's time. `namespaces` are
        the namespaces whose claims the pool serves; empty means all.
        """
        inventory = Inventory.of(name, appliances, divides_time=divides_time, namespaces=namespaces)
        if self._inventories.get(name) != inventory:
            self._inventories[name] = inventory
            self._rooms.pop(name, None)
            self._unsettled.add(name)

    def remove_pool(self, name: str) -> None:
        if self._inventories.pop(name, None) is not None:
            self._rooms.pop(name, None)
            self._unsettled.add(name)

    def set_quotas(self, namespace: str, hard: Mapping[str, int]) -> None:
        """Sets the limits of a namespace's ResourceQuotas, by name, in thousandths of a GPU. Empty means no limit."""
        if self._quotas.get(namespace, {}) != hard:
            self._quotas[namespace] = dict(hard)
            self._unsettled.update(self._queues)

    def hold(self, request: Request, allocations: Iterable[Allocation]) -> None:
        """Records the GPUs that a claim has according to its status. They are not checked: the pod may be running."""
        self._end_wait(request.uid)
        self._put(request, tuple(allocations))
        self._unsettle(request)

    def submit(self, request: Request) -> None:
        """Queues a request for GPUs, or updates the queued request. No effect if the request is placed or unchanged."""
        placed = self._ledger.get(request.uid) is not None and not request.again
        if placed or self._waiting.get(request.uid) == request:
            return
        reported = self._reported.get(request.uid)
        self._forget_waiting(request.uid)
        if reported is not None:
            self._reported[request.uid] = reported
        self._waiting[request.uid] = request
        self._waits.begin(request)
        self._queues.setdefault(request.pool, Queue()).add(request, self._waits.stage(request.uid))
        self._unsettled.add(request.pool)

    def release(self, uid: str) -> None:
        """Removes a claim and frees its GPUs. An unknown `uid` has no effect."""
        request = self._end_wait(uid)
        entry = self._ledger.take(uid)
        if request is not None:
            self._unsettled.add(request.pool)
        if entry is not None:
            self._note(entry.request, entry.allocations)
            self._unsettle(entry.request)

    def settle(self) -> list[Decision]:
        """Places all requests that fit now, and returns the new decisions.

        A request that must wait gets a `Waiting` decision only when its reason is new.
        """
        walked: dict[str, _Walked | None] = {}
        decisions: list[Decision] = list(self._place_all(walked))
        for pool, last in sorted(walked.items()):
            walk, refusals = last or self._refusals(pool)
            told = [(request, refused) for group, refused in refusals for request in group.tell(refused.reason)]
            for request, refused in sorted(told, key=lambda each: each[0].turn):
                if self._reported.get(request.uid) != refused.reason:
                    self._reported[request.uid] = refused.reason
                    decisions.append(Waiting(request, refused.reason, self._sentence(refused, request, walk)))
        return decisions

    def place(self) -> list[Placed]:
        """Places the same requests as `settle`, but reports no reasons: a later `settle` does not report them."""
        return list(self.placing())

    def placing(self) -> Iterator[Placed]:
        """Places requests one by one. A caller that stops the iterator leaves the rest of the requests unplaced."""
        return self._place_all({})

    def copy(self) -> "Allocator":
        """Returns an independent copy with the same state."""
        made = Allocator()
        made._inventories = dict(self._inventories)
        made._quotas = dict(self._quotas)
        made._ledger = self._ledger.copy()
        made._rooms = {pool: rooms.copy() for pool, rooms in self._rooms.items()}
        made._queues = {pool: queue.copy() for pool, queue in self._queues.items()}
        made._waiting = dict(self._waiting)
        made._reported = dict(self._reported)
        made._unsettled = set(self._unsettled)
        made._waits = self._waits.copy()
        return made

    def victims(self, pool: str, before: Mapping[str, str]) -> dict[str, str]:
        """Returns the claims to suspend for waiting claims of higher priority: see `victims.victims`."""
        inventory = self._inventories.get(pool)
        if inventory is None:
            return {}
        _, refusals = self._refusals(pool)
        waiting = (group.members for group, each in refusals if each.reason is Reason.WAITING_FOR_CAPACITY)
        return victims(inventory, self._ledger, heapq.merge(*waiting, key=turn_of), before)

    def elsewhere(self, uid: str, source: str, target: str) -> tuple[Allocation, ...] | str:
        """Returns allocations on another appliance in place of those on `source`, or a message why there are none.

        If `target` is not empty, only this appliance is considered. The new allocations have the same memory; those of
        a suspended claim have the memory that the claim asks for. Waiting requests do not matter: the claim already has
        its share.
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
                left = sum(
                    free_bytes(slot, self._ledger) for slot in slots if any(slot.gpu.uuid == each.gpu for each in found)
                )
                fitting.append((left, name, found))
        if fitting:
            return min(fitting)[2]
        wanted = " and ".join(f"{format_bytes(each.memory)} of {each.model}" for each in mine)
        who = f"{target} has not" if target else f"no other appliance of pool {entry.request.pool} has"
        return f"NoRoom: {who} {wanted} free"

    def packing(self, pool: str, sessions: int, about: Callable[[str], About]) -> PackingState | None:
        """Returns a pool's state for `packing.plan`; None for an unknown pool.

        `sessions` is the most of one GPU. `about` returns what the allocator does not know of a claim, by its uid.
        A plan fills no GPU without emptying another one of its kind, and none that alone could serve a waiting request.
        """
        if (inventory := self._inventories.get(pool)) is None:
            return None
        _, refusals = self._refusals(pool)
        wanted = (each.mask for _, each in refusals if each.reason is Reason.WAITING_FOR_CAPACITY)
        return PackingState.of(inventory, self._ledger, sessions, about, wanted)

    def refusal(self, uid: str, source: str, to: tuple[Allocation, ...]) -> str:
        """Returns why a claim's allocations on `source` cannot be replaced by `to` now; empty if they can."""
        entry = self._ledger.get(uid)
        if entry is None or (inventory := self._inventories.get(entry.request.pool)) is None:
            return "its pool is not known"
        mine = [(each.model, each.memory) for each in entry.allocations if each.appliance == source]
        if mine != [(each.model, each.memory) for each in to]:
            return f"what it has on {source} has changed"
        for each in to:
            indices = inventory.slots_at([(each.appliance, each.gpu)])
            if not indices:
                return f"{each.gpu} of {each.appliance} is not there any more"
            slot = inventory.slots[indices[0]]
            if slot.closed:
                return slot.closed
            # The claim itself has it already if an earlier attempt could not write that it moves.
            left = slot.gpu.shareable - self._ledger.memory_of_others(uid, each.appliance, each.gpu)
            if left < each.memory or not self._has_time(inventory, entry.request, slot):
                return f"NoRoom: {each.gpu} of {each.appliance} has not {format_bytes(each.memory)} free any more"
        return ""

    def resized(self, request: Request) -> tuple[Allocation, ...] | str:
        """Returns the claim's allocations at the size that it asks for now, or a message why it cannot get this size.

        Only memory in addition to the present allocations must be free. Waiting claims come first.
        """
        entry, inventory = self._ledger.get(request.uid), self._inventories.get(request.pool)
        if entry is None or inventory is None:
            return "its pool is not known"
        indices = inventory.slots_at((each.appliance, each.gpu) for each in entry.allocations)
        if not len(indices) == len(entry.allocations) == request.ask.count:
            return "its GPUs are not all there"
        pairs = zip(indices, entry.allocations, strict=True)
        # A GPU's shareable memory may have changed a little since the allocation. This alone causes no resize.
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
        """Returns a message about the first GPU without enough free time for the request; empty if all have enough."""
        for slot in (inventory.slots[index] for index in indices):
            if not self._has_time(inventory, request, slot):
                return f"NoRoom: as much of the time of {slot.gpu.uuid} of {slot.appliance} is not free"
        return ""

    def _has_time(self, inventory: Inventory, request: Request, slot: Slot) -> bool:
        """Whether the GPU has enough free time for the request's guarantee. Always true if time is not divided."""
        return not inventory.divides_time or self._time(request, slot) <= self._free_time(request, slot)

    def _time(self, request: Request, slot: Slot) -> int:
        shareable = slot.gpu.shareable
        return request.ask.compute.guaranteed(request.ask.bytes_of(shareable), shareable)

    def _free_time(self, request: Request, slot: Slot) -> int:
        return MILLI_PER_GPU - self._ledger.guaranteed_to_others(request.uid, slot.appliance, slot.gpu)

    def _no_room(self, inventory: Inventory, request: Request, indices: list[int], more: list[int]) -> str:
        """Returns why the GPUs at `indices` do not have `more` bytes for the claim; empty if they have."""
        # Most claims ask for no more memory, and examining the queue for each of them would be slow.
        if all(size <= 0 for size in more):
            return ""
        walk = Walk()
        for each, group in self._queues.get(inventory.pool, Queue()).heads():
            self._keep(inventory, each, group, inventory.candidates(each).mask, walk)
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
        """Returns allocations of the same sizes on other GPUs of the same models, a different GPU for each.

        Returns None if the GPUs in `slots` do not have enough free memory.
        """
        free, found = list(slots), []
        for each in mine:
            fits = [
                slot for slot in free if slot.gpu.model == each.model and free_bytes(slot, self._ledger) >= each.memory
            ]
            if not fits:
                return None
            slot = min(fits, key=lambda fit: (free_bytes(fit, self._ledger), fit.gpu.uuid))
            free.remove(slot)
            found.append(replace(each, appliance=slot.appliance, node=slot.node, gpu=slot.gpu.uuid))
        return tuple(found)

    def waiting(self) -> list[Request]:
        """Returns all waiting requests, pool by pool, in the order in which they are served."""
        return [request for _, queue in sorted(self._queues.items()) for request in queue.requests()]

    def held(self, uid: str) -> tuple[Allocation, ...] | None:
        entry = self._ledger.get(uid)
        return None if entry is None else entry.allocations

    def message(self, uid: str) -> str:
        """Returns why the request waits now; empty if it does not wait."""
        request = self._waiting.get(uid)
        if request is None:
            return ""
        mine = self._queues[request.pool].group_of(uid)
        walk, refusals = self._refusals(request.pool)
        # A request that only waits for `settle` has no reason.
        return next((self._sentence(refused, request, walk) for group, refused in refusals if group is mine), "")

    def capacity(self, pool: str) -> Capacity:
        """Returns a pool's total, allocated and free amounts. They are zero for an unknown pool."""
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

    def _place_all(self, walked: dict[str, _Walked | None]) -> Iterator[Placed]:
        """Places requests of all unsettled pools.

        Stores each pool's last walk in `walked`, or None if a later placement has made the walk outdated.
        """
        while self._unsettled:
            pool = min(self._unsettled)
            self._unsettled.remove(pool)
            walk = Walk()
            refusals: list[tuple[Group, _Refused]] = []
            walked[pool] = walk, refusals
            for request, group in self._queues.get(pool, Queue()).heads():
                outcome = self._try(request, group, walk)
                if isinstance(outcome, _Refused):
                    refusals.append((group, outcome))
                    continue
                # Groups that were refused earlier may get another answer now.
                walked[pool] = None
                self._end_wait(request.uid)
                self._put(request, outcome.allocations)
                self._unsettle_namespace(request.namespace)
                yield outcome

    def _refusals(self, pool: str) -> _Walked:
        """Examines a pool's queue like `_place_all`, but places nothing. Returns the walk and the refused groups."""
        walk, refusals = Walk(), []
        for request, group in self._queues.get(pool, Queue()).heads():
            outcome = self._try(request, group, walk)
            if isinstance(outcome, _Refused):
                refusals.append((group, outcome))
        return walk, refusals

    def _put(self, request: Request, allocations: tuple[Allocation, ...]) -> None:
        before = self._ledger.get(request.uid)
        self._ledger.put(request, allocations)
        if before is not None:
            self._note(before.request, before.allocations)
        self._note(request, allocations)

    def _note(self, request: Request, allocations: Iterable[Allocation]) -> None:
        places = [(each.appliance, each.gpu) for each in allocations]
        for rooms in self._rooms.values():
            rooms.note(request.namespace, places, self._ledger)

    def _rooms_of(self, inventory: Inventory) -> Rooms:
        if (rooms := self._rooms.get(inventory.pool)) is None:
            rooms = self._rooms[inventory.pool] = Rooms(inventory, self._ledger)
        return rooms

    def _try(self, request: Request, group: Group, walk: Walk) -> Placed | _Refused:
        inventory = self._inventories.get(request.pool)
        if inventory is None:
            pools = some(sorted(self._inventories)) or "none"
            said = f"there is no GPUPool {request.pool}: create it, or name another one; there are: {pools}"
            return _Refused(Reason.NO_SUCH_POOL, said)
        try_it = self._try_again if request.again else self._try_anew
        return try_it(inventory, request, group, walk)

    def _try_anew(self, inventory: Inventory, request: Request, group: Group, walk: Walk) -> Placed | _Refused:
        """Places the request on the GPUs that suit it best."""
        if inventory.namespaces and request.namespace not in inventory.namespaces:
            said = f"pool {inventory.pool} is for other namespaces than {request.namespace}: name another pool"
            return _Refused(Reason.NAMESPACE_NOT_ALLOWED, said)
        candidates = group.candidates(inventory)
        if not candidates.slots:
            return _Refused(candidates.reason, candidates.message)
        if said := self._over_quota(request, candidates.charge):
            return _Refused(Reason.QUOTA_EXCEEDED, said)
        chosen, kept = None, self._kept_from(request, group, walk)
        if (candidates.mask & ~kept).bit_count() >= request.ask.count:
            chosen = self._chosen(inventory, candidates, request, kept)
        if chosen is None:
            # The request reserves GPUs only if the GPUs in service could serve it: else it would stop others for
            # nothing.
            if candidates.open >= request.ask.count:
                self._keep(inventory, request, group, candidates.mask, walk)
            return _Refused(Reason.WAITING_FOR_CAPACITY, mask=candidates.mask)
        allocations = tuple(_allocation(inventory.slots[index], request.ask) for index in chosen)
        if said := self._over_quota(request, sum(allocation.milli for allocation in allocations)):
            return _Refused(Reason.QUOTA_EXCEEDED, said)
        return Placed(request, allocations)

    def _try_again(self, inventory: Inventory, request: Request, group: Group, walk: Walk) -> Placed | _Refused:
        """Places a suspended claim's request on the GPUs that the claim had: its paused programs are there."""
        indices = inventory.slots_at(request.again)
        if len(indices) < len(request.again):
            there = {inventory.slots[index].gpu.uuid for index in indices}
            missing = next(gpu for _, gpu in request.again if gpu not in there)
            said = f"{missing}, on which its programs wait, is not there"
            return _Refused(Reason.WAITING_FOR_CAPACITY, said)
        mask = inventory.mask_of(indices)
        kept = mask & self._kept_from(request, group, walk)
        allocations = tuple(_allocation(inventory.slots[index], request.ask) for index in indices)
        if said := self._over_quota(request, sum(allocation.milli for allocation in allocations)):
            return _Refused(Reason.QUOTA_EXCEEDED, said)
        for index, wanted in zip(indices, allocations, strict=True):
            slot = inventory.slots[index]
            left = slot.gpu.shareable - self._ledger.memory_of_others(request.uid, slot.appliance, wanted.gpu)
            if slot.broken or left < wanted.memory or kept:
                free = slot.broken or f"{format_bytes(max(0, left))} of it is free"
                queue = f", {walk.ahead(mask, request)} ahead" if kept else ""
                said = f"{request.ask} of {wanted.gpu} on {wanted.appliance}, where its programs wait: {free}{queue}"
                self._keep(inventory, request, group, mask, walk)
                return _Refused(Reason.WAITING_FOR_CAPACITY, said, mask=mask)
        if said := self._no_time(inventory, request, indices):
            self._keep(inventory, request, group, mask, walk)
            return _Refused(Reason.WAITING_FOR_CAPACITY, said, mask=mask)
        return Placed(request, allocations)

    def _kept_from(self, request: Request, group: Group, walk: Walk) -> int:
        """Returns the GPUs that are reserved for requests before this one, as bits."""
        return walk.kept_from(request.namespace) if reservations.heeds(group.stage) else 0

    def _keep(self, inventory: Inventory, request: Request, group: Group, mask: int, walk: Walk) -> None:
        """Reserves the GPUs in `mask` for the group if the group has waited for the right time: see `reservations`."""
        # A suspended claim waits for its own GPUs, and not for other claims of its namespace.
        holds = not request.again and self._rooms_of(inventory).held(request.namespace, self._ledger) & mask != 0
        if reservations.reserves(group.stage, holds=holds):
            walk.keep(group, mask, within="")
        elif reservations.reserves_within_tenant(group.stage):
            walk.keep(group, mask, within=request.namespace)

    def _chosen(self, inventory: Inventory, candidates: Candidates, request: Request, kept: int) -> list[int] | None:
        """Returns the indices of the GPUs that the request gets; None if there are not enough GPUs."""
        if request.ask.count == 1 and request.placement is Placement.PACK and not inventory.divides_time:
            # A fast path for the common case. The tightest GPU is also the choice of `choose`.
            tightest = self._rooms_of(inventory).tightest(candidates, kept)
            return [tightest[1]] if tightest else None
        room = self._room(inventory, candidates, request, kept)
        fits = (Fit(left, inventory.slots[index].appliance, index) for left, index in room)
        chosen = choose(fits, request.ask.count, request.placement)
        return None if chosen is None else sorted(fit.slot for fit in chosen)

    def _room(self, inventory: Inventory, candidates: Candidates, request: Request, kept: int) -> list[tuple[int, int]]:
        """Returns the GPUs that have room for the request and are not in `kept`: bytes left over, and index."""
        room = self._rooms_of(inventory).fitting(candidates, kept)
        if not inventory.divides_time:
            return list(room)
        return [each for each in room if self._has_time(inventory, request, inventory.slots[each[1]])]

    def _over_quota(self, request: Request, milli: int) -> str:
        """Returns a message about the ResourceQuota that does not allow `milli` more; empty if all allow them."""
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

    def _sentence(self, refused: _Refused, request: Request, walk: Walk) -> str:
        """Returns the message for a request of a refused group."""
        if refused.said:
            return refused.said
        inventory, ahead = self._inventories[request.pool], walk.ahead(refused.mask, request)
        queue = f"{ahead} {'claim' if ahead == 1 else 'claims'} ahead"
        candidates, rooms = inventory.candidates(request), self._rooms_of(inventory)
        if inventory.divides_time:
            roomy = len(self._room(inventory, candidates, request, 0))
        else:
            roomy = rooms.count(candidates)
        if roomy >= request.ask.count:
            return f"{request.ask} is free in pool {request.pool}, but kept for {queue}"
        emptiest = rooms.emptiest(candidates)
        left, alone = max(0, rooms.free[emptiest]), len(candidates.slots) == 1
        whose = "its GPU has" if alone else f"of its {len(candidates.slots)} GPUs"
        if request.ask.count > 1:
            room = f"{whose} {roomy} {'has' if roomy == 1 else 'have'} as much free"
        elif not left:
            room = f"{whose} {'nothing' if alone else 'none has anything'} free"
        else:
            milli = left * MILLI_PER_GPU // inventory.slots[emptiest].gpu.shareable
            part = f"{format_milli(milli)} ({format_bytes(left)})"
            room = f"{whose} {part} free" if alone else f"{whose} the emptiest has {part} free"
        if inventory.divides_time:
            slots = [inventory.slots[index] for index in candidates.slots]
            if not all(self._has_time(inventory, request, slot) for slot in slots):
                time = max(self._free_time(request, slot) for slot in slots)
                room += f", and {format_milli(max(0, time))} of the time of a GPU is free"
        said = f"{request.ask} is not free in pool {request.pool}: {room}"
        return "; ".join([said, *([candidates.closed] if candidates.closed else []), *([queue] if ahead else [])])

    def _unsettle(self, request: Request) -> None:
        """Marks the request's pool as unsettled after a change of allocations. With a quota it marks every pool."""
        self._unsettled.add(request.pool)
        self._unsettle_namespace(request.namespace)

    def _unsettle_namespace(self, namespace: str) -> None:
        """Marks every pool as unsettled if the namespace has a quota: a quota counts the shares of all pools."""
        if self._quotas.get(namespace):
            self._unsettled.update(self._queues)

    def _end_wait(self, uid: str) -> Request | None:
        """Removes a waiting request, and forgets since when it waits. Returns the request, or None."""
        self._waits.end(uid)
        return self._forget_waiting(uid)

    def _forget_waiting(self, uid: str) -> Request | None:
        self._reported.pop(uid, None)
        request = self._waiting.pop(uid, None)
        if request is not None:
            self._queues[request.pool].remove(request)
        return request

    def _with_usage(self, appliance: ApplianceStatus) -> ApplianceStatus:
        gpus = []
        for gpu in appliance.gpus:
            used = self._ledger.memory(appliance.name, gpu.uuid)
            gpus.append(replace(gpu, allocated_memory=used, allocated_milli=_used_milli(gpu, used)))
        return replace(appliance, gpus=tuple(gpus))


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
    """Returns the used thousandths of a GPU, rounded up: a share of as many thousandths as are free always fits."""
    free = max(0, gpu.shareable - used)
    return MILLI_PER_GPU - free * MILLI_PER_GPU // gpu.shareable if gpu.shareable else MILLI_PER_GPU


def _amount(milli: int, memory: int) -> Amount:
    """Builds an amount with memory rounded down to whole MiB. `ApplianceStatus` has the exact bytes."""
    return Amount(milli, memory >> 20 << 20)


def _add(amount: list[int], milli: int, memory: int) -> None:
    amount[0] += milli
    amount[1] += memory
