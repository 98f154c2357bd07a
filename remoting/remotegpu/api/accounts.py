"""Evaluates usage records: sums with costs, their history, idle holders, and how long claims waited. Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import pairwise
from typing import Final, Literal

from remotegpu.api.pools import Price
from remotegpu.api.usage import Amount, Amounts, Day, Holding, Record, Who, amounts, start_of

By = Literal["namespace", "user", "pool", "model", "claim"]

# The index of each key in the tuple `Who`.
PLACES: Final[Mapping[By, int]] = {"namespace": 0, "user": 1, "pool": 2, "model": 3, "claim": 4}
_HOUR: Final = 3600
# The operator updates `Record.until` every ten seconds.
_STALE_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class Row:
    """A row of sums in base units: one whole GPU held for one second is one GPU second."""

    by: dict[str, str]
    gpu_seconds: float
    used_gpu_seconds: float
    byte_seconds: int
    unknown_gpu_seconds: float
    cost: float | None


@dataclass(frozen=True, slots=True)
class Idle:
    namespace: str
    claim: str
    user: str
    pool: str
    gpus: float
    idle_seconds: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Waiting times of a pool's claims, from creation to the first share."""

    pool: str
    claims: int
    median_seconds: int
    most_seconds: int  # the 90th percentile


def is_stale(record: Record, now: int) -> bool:
    """Whether a claim holds a share but the operator has not updated the record for a minute."""
    return bool(record.open()) and now - record.until > _STALE_SECONDS


def within(record: Record, shows: Callable[[str], bool]) -> Record:
    """Returns the part of the record about the namespaces that `shows` accepts."""
    return replace(
        record,
        holdings={key: each for key, each in record.holdings.items() if shows(each.namespace)},
        days={
            day: Day(kept.folded, {who: each for who, each in kept.amounts.items() if shows(who[0])})
            for day, kept in record.days.items()
        },
        problems=[],
    )


def history(record: Record, edges: Sequence[int]) -> list[Amounts]:
    """Returns `amounts` for each interval between two edges. The stored sum of a day counts in the first one only."""
    # For speed, each interval gets only its own holdings: a month of a large cluster has some ten thousand.
    parts: list[dict[tuple[str, int], Holding]] = [{} for _ in pairwise(edges)]
    for key, each in record.holdings.items():
        end = record.until if each.end is None else each.end + each.unknown
        for index in range(max(0, bisect_right(edges, each.start) - 1), min(len(parts), bisect_left(edges, end))):
            parts[index][key] = each
    found, days = [], record.days
    for (first, last), held in zip(pairwise(edges), parts, strict=True):
        found.append(amounts(replace(record, holdings=held, days=days), first, last))
        days = {day: kept if start_of(day) >= last else Day(kept.folded) for day, kept in days.items()}
    return found


def waits(record: Record, since: int, until: int) -> list[Wait]:
    """Returns waiting times, by pool, of the claims that were created between two times and got a share."""
    first: dict[str, Holding] = {}
    for each in sorted(record.holdings.values(), key=lambda each: each.start):
        if since <= each.created < until and not each.void:
            first.setdefault(each.uid, each)
    pools: dict[str, list[int]] = {}
    for each in first.values():
        pools.setdefault(each.pool, []).append(max(0, each.start - each.created))
    return [Wait(pool, len(each), _percentile(each, 50), _percentile(each, 90)) for pool, each in sorted(pools.items())]


def _percentile(values: Sequence[int], percent: int) -> int:
    """Returns the smallest of `values` that at least `percent` percent of them do not exceed."""
    return sorted(values)[-(-percent * len(values) // 100) - 1]


def idlers(held: Iterable[Holding], least: int, now: int) -> list[Idle]:
    """Returns claims that hold a share and have had no session for at least `least` seconds, the longest idle first."""
    found = [
        Idle(each.namespace, each.claim, each.user, each.pool, milli / 1000, now - each.idle_since)
        for each in held
        if each.in_use_since is None
        and now - each.idle_since >= least
        and (milli := sum(share.milli for share in each.shares))
    ]
    return sorted(found, key=lambda each: -each.idle_seconds)


def rows(found: Amounts, by: Sequence[By], prices: Mapping[str, Sequence[Price]]) -> list[Row]:
    """Returns the sums grouped by the keys `by`, ordered by cost, then by GPU seconds, largest first."""
    groups: dict[tuple[str, ...], list[tuple[Who, Amount]]] = {}
    for who, amount in found.items():
        groups.setdefault(tuple(_name(who, each) for each in by), []).append((who, amount))
    made = [_row(dict(zip(by, key, strict=True)), members, prices) for key, members in groups.items()]
    return sorted(made, key=lambda row: (-(row.cost or 0), -row.gpu_seconds, tuple(row.by.values())))


def _name(who: Who, by: By) -> str:
    if by == "claim":
        return f"{who[0]}/{who[4]}" if who[4] else f"{who[0]}/(days whose claims are not told apart)"
    return who[PLACES[by]]


def _row(by: dict[str, str], members: Sequence[tuple[Who, Amount]], prices: Mapping[str, Sequence[Price]]) -> Row:
    total = sum((amount for _, amount in members), Amount())
    costs = [
        None if (price := price_of(who, prices)) is None else price * amount.milli / 1000 / _HOUR
        for who, amount in members
    ]
    known = [each for each in costs if each is not None]
    return Row(
        by,
        total.milli / 1000,
        total.used / 1000,
        total.memory,
        total.unknown / 1000,
        float(round(sum(known, Decimal()), 4)) if len(known) == len(costs) else None,
    )


def price_of(who: Who, prices: Mapping[str, Sequence[Price]]) -> Decimal | None:
    """Returns the current hourly price of a whole GPU of this pool and model; None if the pool sets no price."""
    _, _, pool, model, _ = who
    named = (each for each in prices.get(pool, ()) if each.model.lower() in model.lower())
    return next((Decimal(each.gpu_hour) for each in named), None)
