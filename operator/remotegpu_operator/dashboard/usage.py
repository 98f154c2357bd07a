"""Sums of the operator's usage record for the page, limited to the claims that a reader may list."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from remotegpu.api import usage
from remotegpu.api.accounts import By, Row, history, idlers, is_stale, rows, waits, within
from remotegpu.api.pools import Price
from remotegpu.api.usage import USAGE_LABEL, Record
from remotegpu.dashboard.state import Scope
from remotegpu_operator.cluster.kube import Api
from remotegpu_operator.usage.journal import CONFIG_MAPS

Json = dict[str, Any]
Prices = Mapping[str, Sequence[Price]]

_HOUR: Final = 3600
_DAY: Final = 24 * _HOUR
# The length in seconds of each range, and of a bar in its chart.
RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "hour": (_HOUR, 300),
    "day": (_DAY, _HOUR),
    "week": (7 * _DAY, 6 * _HOUR),
    "month": (30 * _DAY, _DAY),
}
# The keys for sums. The user is not among them: a reader who may list claims may not know all their users.
BY: Final[Mapping[str, By]] = {"namespace": "namespace", "pool": "pool", "model": "model", "claim": "claim"}
_MOST_ROWS: Final = 100
_IDLE_SECONDS: Final = 600
# The record has megabytes. It is read on demand, at most every ten seconds and for at most a fifth of the time.
_KEPT_SECONDS: Final = 10.0
_PAUSE_PER_WORK: Final = 4


class Recorded:
    """A cached copy of the usage record, some seconds old, and sums over it."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._record = Record()
        self._due = float("-inf")
        self._work = 0.0
        self._answers: dict[tuple[Scope, str, str], Json] = {}
        # One computation at a time, because the operator works in the same process.
        self._working = asyncio.Lock()

    async def namespaces(self) -> set[str]:
        """Returns the namespaces of all recorded claims. Raises the errors of `Api`."""
        async with self._working:
            return {each.namespace for each in (await self._read()).holdings.values()}

    async def usage(self, scope: Scope, length: str, by: str, prices: Prices) -> Json:
        """Returns sums of usage within `scope`; see `usage_of`. `by` is a key of `BY`. Raises the errors of `Api`."""
        async with self._working:
            record = await self._read()
            key = (scope, length, by)
            if key not in self._answers:
                begun = time.monotonic()
                self._answers[key] = await asyncio.to_thread(
                    usage_of, within(record, scope.shows), length, BY[by], prices, int(time.time())
                )
                self._work += time.monotonic() - begun
            return self._answers[key]

    async def of_claim(self, namespace: str, name: str, prices: Prices) -> Json:
        async with self._working:
            return usage_of_claim(await self._read(), namespace, name, prices, int(time.time()))

    async def _read(self) -> Record:
        begun = time.monotonic()
        if begun >= self._due + _PAUSE_PER_WORK * self._work:
            items, _ = await self._api.list(CONFIG_MAPS, self._namespace, USAGE_LABEL)
            self._record = await asyncio.to_thread(usage.read, items)
            self._answers.clear()
            self._work = time.monotonic() - begun
            self._due = time.monotonic() + _KEPT_SECONDS
        return self._record


def usage_of(record: Record, length: str, by: By, prices: Prices, now: int) -> Json:
    """Returns the usage in the range `length` until `now`: sums, bars of a chart, waiting times and idle claims.

    `length` is a key of `RANGES`; `now` is in seconds since 1970.
    """
    seconds, step = RANGES[length]
    since = now - seconds
    found = usage.amounts(record, since, now)
    ordered = rows(found, [by], prices)
    edges = [since, *range(since - since % step + step, now, step), now]
    bars = [_total(each, {}) for each in history(record, edges)]
    return {
        "range": length,
        "by": by,
        "since": since,
        "until": now,
        "known": record.until if is_stale(record, now) else now,
        "unreadable": len(record.problems),
        "total": _total(found, prices),
        "rows": [{"name": each.by[by], **_figures(each)} for each in ordered[:_MOST_ROWS]],
        "more": max(0, len(ordered) - _MOST_ROWS),
        "bars": [
            {"start": start, "held": each["gpu_seconds"], "used": each["used_gpu_seconds"]}
            for start, each in zip(edges, bars, strict=False)
        ],
        "waits": [asdict(each) for each in waits(record, since, now)],
        "idle": [asdict(replace(each, user="")) for each in idlers(record.open(), _IDLE_SECONDS, now)[:_MOST_ROWS]],
    }


def usage_of_claim(record: Record, namespace: str, name: str, prices: Prices, now: int) -> Json:
    """Returns a claim's usage in the last hour, and for how many seconds it has been idle.

    `idle_seconds` counts from the end of the last session. It is None if the claim has a session or no share.
    """
    of_it = {key: each for key, each in record.holdings.items() if (each.namespace, each.claim) == (namespace, name)}
    its = replace(record, holdings=of_it, days={})
    unused = idlers(its.open(), 0, now)
    return {
        **_total(usage.amounts(its, now - _HOUR, now), prices),
        "idle_seconds": unused[0].idle_seconds if unused else None,
    }


def _total(found: usage.Amounts, prices: Prices) -> Json:
    return _figures(next(iter(rows(found, [], prices)), Row({}, 0.0, 0.0, 0, 0.0, None)))


def _figures(row: Row) -> Json:
    return {name: getattr(row, name) for name in Row.__slots__ if name != "by"}
