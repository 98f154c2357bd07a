"""Explains why a claim waits, and estimates when it starts.

The explanation also has the claims that must end before, and smaller claims that could start now. All functions are
pure: they run the operator's allocator on the API server's objects.

A running program does not announce its end, so the remaining time of a claim is an estimate. It is the median of the
remaining times of ended pods of the pool that ran longer. Without such pods a claim is assumed to be half done.
"""

import datetime
import heapq
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from remotegpu.api.claims import GPUClaim, Phase, Reason
from remotegpu.api.durations import format_duration
from remotegpu.api.kubernetes import DEFAULT_POOL, POOL_ANNOTATION
from remotegpu.api.modes import ComputeMode
from remotegpu.api.objects import readable
from remotegpu.api.pods import LEAST_MEMORY
from remotegpu.api.pools import GPUPool
from remotegpu.api.quantities import MILLI_PER_GPU, Ask, format_milli
from remotegpu.api.waiting import Answer, Holder
from remotegpu_operator.allocation import Allocator, Request, request_of
from remotegpu_operator.builders import leaving
from remotegpu_operator.builders.claims import HOLDING
from remotegpu_operator.builders.quotas import hard_milli

Objects = Mapping[str, Sequence[Mapping[str, Any]]]

_MIB: Final = 1 << 20
# A creation time later than all others: a new claim comes after all waiting claims.
_YOUNGEST: Final = "9999"
# The most ends of claims to simulate, and the most of them to examine one by one.
_MOST_ENDS: Final = 2000
_MOST_TRIED: Final = 32


@dataclass(frozen=True, slots=True)
class State:
    """The objects of a cluster that the allocator needs."""

    pools: tuple[GPUPool, ...]
    claims: tuple[GPUClaim, ...]
    quotas: Mapping[str, Mapping[str, int]]  # by namespace and name
    classes: Mapping[str, int]

    @classmethod
    def of(cls, objects: Objects) -> "State":
        quotas: dict[str, dict[str, int]] = {}
        for quota in objects["resourcequotas"]:
            if (milli := hard_milli(dict(quota))) is not None:
                quotas.setdefault(quota["metadata"]["namespace"], {})[quota["metadata"]["name"]] = milli
        return cls(
            pools=tuple(readable(GPUPool.from_object, objects["gpupools"])),
            claims=tuple(readable(_claim, objects["gpuclaims"])),
            quotas=quotas,
            classes={each["metadata"]["name"]: each["value"] for each in objects["priorityclasses"]},
        )

    def request(self, claim: GPUClaim) -> Request:
        return request_of(claim, self.classes)

    def allocator(self, now: datetime.datetime) -> Allocator:
        """Returns an allocator with all pools, quotas and claims, before it has made a decision."""
        made = Allocator()
        made.set_time(now.timestamp())
        for pool in self.pools:
            divides_time = pool.spec.compute_mode is ComputeMode.TURNS
            made.set_pool(pool.name, pool.status.appliances, divides_time=divides_time, namespaces=pool.spec.namespaces)
        for namespace, hard in self.quotas.items():
            made.set_quotas(namespace, hard)
        for claim in self.claims:
            self.enter(claim, made)
        return made

    def enter(self, claim: GPUClaim, allocator: Allocator) -> None:
        if claim.status.phase in HOLDING:
            allocator.hold(self.request(claim), claim.status.held)
        if wants(claim):
            allocator.submit(self.request(claim))


def wants(claim: GPUClaim) -> bool:
    """Whether the claim waits for a share. A claim that was suspended for a claim of higher priority also waits."""
    gave_way = claim.status.phase is Phase.SUSPENDED and claim.status.reason is Reason.FOR_PRIORITY
    return gave_way or (claim.status.phase not in HOLDING and claim.status.phase is not Phase.EXPIRED)


def _claim(stored: Mapping[str, Any]) -> GPUClaim:
    """Reads a claim. Raises KeyError or ValueError if the operator cannot read it."""
    claim = GPUClaim.from_object(stored)
    request_of(claim)
    return claim


def explain(namespace: str, name: str, objects: Objects, now: datetime.datetime) -> Answer:
    """Explains why a claim waits; see `remotegpu.api.waiting.Explainer`.

    Raises KeyError if the claim is not among the objects, and ValueError if it cannot be read.
    """
    state = State.of(objects)
    claim = next((each for each in state.claims if (each.namespace, each.name) == (namespace, name)), None)
    if claim is None:
        named = {(each["metadata"]["namespace"], each["metadata"]["name"]): each for each in objects["gpuclaims"]}
        claim = _claim(named[namespace, name])
    request, status = state.request(claim), claim.status
    answer = Answer(claim.key, claim.spec.pool, str(claim.spec.ask), status.phase, status.reason, status.message)
    if not wants(claim):
        return answer
    allocator = state.allocator(now)
    queue = [each for each in allocator.waiting() if each.pool == claim.spec.pool]
    ahead = [each for each in queue if each.turn < request.turn]
    answer = replace(
        answer,
        message=allocator.message(claim.uid) or status.message,
        position=len(ahead) + 1,
        ahead=tuple(f"{each.namespace}/{each.name}" for each in ahead),
        smaller=() if request.again else tuple(_smaller(allocator, request)),
    )
    if status.reason not in (Reason.WAITING_FOR_CAPACITY, Reason.NOT_SEEN, Reason.QUOTA_EXCEEDED, Reason.FOR_PRIORITY):
        return answer  # the end of another claim would not help
    lengths, latest = lengths_of(objects["pods"], claim.spec.pool), _latest_ends(objects["pods"], now)
    answer = _with_ends(answer, state, allocator, claim, _ends(state, claim, lengths, latest, now), lengths)
    return replace(answer, estimate=answer.estimate + _leaving(answer, state, latest))


@dataclass(frozen=True, slots=True)
class _End:
    claim: GPUClaim
    held_seconds: int
    ends_in_seconds: int


def _latest_ends(pods: Iterable[Mapping[str, Any]], now: datetime.datetime) -> dict[str, int]:
    """Returns the maximum seconds until each pod that is being deleted loses its share, by the pod's uid."""
    found = {}
    for pod in map(dict, pods):
        if leaving.being_deleted(pod):
            left = leaving.latest_end(pod) - now
            found[pod["metadata"]["uid"]] = max(0, int(left.total_seconds()))
    return found


def _leaving(answer: Answer, state: State, latest: Mapping[str, int]) -> str:
    """Returns a message if the claim waits for the share of a pod that is being deleted; empty otherwise."""
    waited_for = {holder.claim for holder in answer.holders}
    ends = [
        (each.spec.pod.name, latest[each.spec.pod.uid])
        for each in state.claims
        if each.key in waited_for and each.spec.pod is not None and each.spec.pod.uid in latest
    ]
    if not ends:
        return ""
    name, seconds = max(ends, key=lambda each: each[1])
    return (
        f"; pod {name} is being deleted, and keeps its share until it has ended, in {format_duration(seconds)} at most"
    )


def _ends(
    state: State, claim: GPUClaim, lengths: Sequence[int], latest: Mapping[str, int], now: datetime.datetime
) -> Iterator[_End]:
    """Yields the probable ends of the claims whose share or quota `claim` could use."""
    for each in state.claims:
        if each.status.phase in HOLDING and (claim.spec.pool == each.spec.pool or claim.namespace == each.namespace):
            held = max(0, int((now - _since(each)).total_seconds()))
            left, owner = remaining(held, lengths), each.spec.pod
            yield _End(each, held, left if owner is None else min(left, latest.get(owner.uid, left)))


def remaining(held_seconds: int, lengths: Sequence[int]) -> int:
    """Returns the median remaining time in seconds of a claim that has lasted `held_seconds`.

    `lengths` are the durations of ended pods in seconds.
    """
    longer = [length - held_seconds for length in lengths if length > held_seconds]
    return int(statistics.median(longer)) if longer else held_seconds


def lengths_of(pods: Iterable[Mapping[str, Any]], pool: str) -> list[int]:
    """Returns the durations in seconds of a pool's ended pods."""
    found = []
    for pod in pods:
        if (pod["metadata"].get("annotations") or {}).get(POOL_ANNOTATION, DEFAULT_POOL) != pool:
            continue
        started = pod.get("status", {}).get("startTime")
        states = [each.get("state", {}) for each in pod.get("status", {}).get("containerStatuses", ())]
        ends = [state["terminated"]["finishedAt"] for state in states if "terminated" in state]
        if started and ends and len(ends) == len(states):
            length = datetime.datetime.fromisoformat(max(ends)) - datetime.datetime.fromisoformat(started)
            found.append(int(length.total_seconds()))
    return found


def _since(claim: GPUClaim) -> datetime.datetime:
    """Returns the time since which the claim has its share."""
    times = [each.last_transition_time for each in claim.status.conditions if each.type == "Ready"]
    return datetime.datetime.fromisoformat(times[0] if times and times[0] else claim.created)


def _with_ends(
    answer: Answer, state: State, now: Allocator, claim: GPUClaim, ends: Iterable[_End], lengths: Sequence[int]
) -> Answer:
    """Returns the answer with the probable start of `claim` and the claims that must end before.

    Simulates the future: claims end one after the other, and waiting claims are placed, until `claim` is placed. Claims
    that are placed earlier end after the median duration.
    """
    allocator, claims = now.copy(), {each.uid: each for each in state.claims}
    events = [(end.ends_in_seconds, end.claim.uid, end) for end in ends if end.claim.uid != claim.uid]
    heapq.heapify(events)
    typical = int(statistics.median(lengths or [end.held_seconds for _, _, end in events] or [0]))
    gone: list[_End] = []
    seconds, placed = 0, _placed(allocator)
    while claim.uid not in placed:
        if not events or len(gone) == _MOST_ENDS:
            return answer
        seconds, uid, end = heapq.heappop(events)
        gone.append(end)
        allocator.release(uid)
        placed = _placed(allocator)
        for each in placed:
            later = _End(claims[each], 0, seconds + typical)
            heapq.heappush(events, (later.ends_in_seconds, each, later))
    holders = [end for end in _needed(state, now, claim, gone) if end.claim.status.phase in HOLDING]
    return replace(
        answer,
        holders=tuple(
            Holder(end.claim.key, str(end.claim.spec.ask), end.held_seconds, end.ends_in_seconds) for end in holders
        ),
        starts_in_seconds=seconds,
        estimate=(
            f"half of the {len(lengths)} pods that have ended in pool {claim.spec.pool} ran for less than "
            f"{format_duration(int(statistics.median(lengths)))}"
            if lengths
            else "no pod of the pool has ended yet, so what runs is taken to be half done"
        ),
    )


def _needed(state: State, now: Allocator, claim: GPUClaim, gone: Sequence[_End]) -> list[_End]:
    """Returns the ends in `gone` that are needed for `claim` to start."""
    needed, without = list(gone), now.copy()
    for end in gone:
        without.release(end.claim.uid)
    # Try to do without the latest ends first, so that the remaining ends are the earliest ones.
    for end in sorted(gone, key=lambda each: -each.ends_in_seconds)[:_MOST_TRIED]:
        fewer = [each for each in needed if each is not end]
        tried = without.copy()
        # A claim that was suspended, and had its share again, has two ends.
        if all(each.claim.uid != end.claim.uid for each in fewer):
            state.enter(end.claim, tried)
        # `any` stops the iterator, so claims after this one are not placed.
        if any(each.request.uid == claim.uid for each in tried.copy().placing()):
            needed, without = fewer, tried
    return needed


def _placed(allocator: Allocator) -> list[str]:
    """Places all claims that fit now, and returns their uids."""
    return [each.request.uid for each in allocator.place()]


def _smaller(now: Allocator, request: Request) -> Iterator[str]:
    """Yields the largest smaller request that a new claim would get at once: first by size, then by number of GPUs."""
    ask, without = request.ask, now.copy()
    without.release(request.uid)

    def starts(each: Ask) -> bool:
        allocator = without.copy()
        allocator.submit(replace(request, uid="new", created=_YOUNGEST, ask=each))
        return "new" in _placed(allocator)

    count = _largest(ask.count - 1, lambda number: starts(replace(ask, count=number)))
    if ask.memory_bytes:
        size = _largest(ask.memory_bytes // _MIB, lambda mib: starts(replace(ask, memory_bytes=mib * _MIB)))
        if size * _MIB >= LEAST_MEMORY:
            yield _written(replace(ask, memory_bytes=size * _MIB))
    elif milli := _largest(min(ask.milli_per_gpu, MILLI_PER_GPU) - 1, lambda m: starts(replace(ask, milli_per_gpu=m))):
        yield _written(replace(ask, milli_per_gpu=milli))
    if count:
        yield _written(replace(ask, count=count))


def _largest(most: int, works: Callable[[int], bool]) -> int:
    """Returns the largest number from 1 to `most` for which `works` is true; 0 if there is none.

    A bisection: if `works` is true for a number, it must be true for all smaller ones.
    """
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if works(middle) else (low, middle - 1)
    return low


def _written(ask: Ask) -> str:
    share = f"{ask.memory_bytes // _MIB}Mi" if ask.memory_bytes else format_milli(ask.milli_per_gpu)
    return share if ask.count == 1 else f"{share} of each of {ask.count} GPUs"
