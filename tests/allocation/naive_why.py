"""The answers of `why` in their simplest form: each question asks a new allocator, made from the objects."""

from __future__ import annotations

import datetime
import heapq
import statistics
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from remotegpu.api.claims import GPUClaim
from remotegpu_operator.allocation import Allocator, Placed
from remotegpu_operator.claims.why import State, lengths_of, remaining


def allocator(state: State, now: datetime.datetime, without: Collection[str] = ()) -> Allocator:
    made = replace(state, claims=()).allocator(now)
    for claim in state.claims:
        if claim.uid not in without:
            state.enter(claim, made)
    return made


def placed(made: Allocator) -> list[str]:
    return [decision.request.uid for decision in made.settle() if isinstance(decision, Placed)]


def ends(objects: Any, name: str, now: datetime.datetime) -> tuple[list[str], int | None]:
    """Keys of the claims whose end makes room, and in how many seconds there is room."""
    state = State.of(objects)
    claim = next(each for each in state.claims if each.name == name)
    lengths = lengths_of(objects["pods"], claim.spec.pool)
    by_uid = {each.uid: each for each in state.claims}
    events = []
    for each in state.claims:
        nearby = each.spec.pool == claim.spec.pool or each.namespace == claim.namespace
        if each.status.held and nearby and each.uid != claim.uid:
            events.append((remaining(held_for(each, now), lengths), each.uid))
    heapq.heapify(events)
    typical = int(statistics.median(lengths or [held_for(by_uid[uid], now) for _, uid in events] or [0]))
    made = allocator(state, now)
    gone: list[tuple[int, str]] = []
    seconds, got = 0, placed(made)
    while claim.uid not in got:
        if not events:
            return [], None
        seconds, uid = heapq.heappop(events)
        gone.append((seconds, uid))
        made.release(uid)
        got = placed(made)
        for each_uid in got:
            heapq.heappush(events, (seconds + typical, each_uid))
    needed = list(gone)
    for end in sorted(gone, key=lambda each: -each[0])[:32]:
        fewer = list(needed)
        fewer.remove(end)
        if claim.uid in placed(allocator(state, now, {uid for _, uid in fewer})):
            needed = fewer
    return [by_uid[uid].key for _, uid in needed if by_uid[uid].status.held], seconds


def held_for(claim: GPUClaim, now: datetime.datetime) -> int:
    (since,) = [each.last_transition_time for each in claim.status.conditions if each.type == "Ready"]
    return max(0, int((now - datetime.datetime.fromisoformat(since)).total_seconds()))


def starts(objects: Any, name: str, milli: int, now: datetime.datetime) -> bool:
    """Whether a claim of that fraction, created now in place of this one, would get its share at once."""
    state = State.of(objects)
    request = next(state.request(each) for each in state.claims if each.name == name)
    made = allocator(state, now, {request.uid})
    made.submit(replace(request, uid="new", created="9999", ask=replace(request.ask, milli_per_gpu=milli)))
    return "new" in placed(made)
