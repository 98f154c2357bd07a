"""Stores usage in ConfigMaps, in the format of `remotegpu.api.usage`. Only the holder of the Lease writes.

Each process writes only into journals that it created itself. So a late write of a former leader does not change the
present leader's journals.
"""

import contextlib
import datetime
import itertools
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from remotegpu.api import usage
from remotegpu.api.kubernetes import MANAGER_LABEL
from remotegpu.api.usage import USAGE_LABEL, Day, Holding, Record
from remotegpu_operator.cluster.kube import Api, ApiError, Object, Resource

_log = logging.getLogger(__name__)

CONFIG_MAPS: Final = Resource("v1", "configmaps", "ConfigMap")
HEAD_NAME: Final = "remotegpu-usage"
# The largest journal. Each write of a line makes etcd store the whole ConfigMap again.
JOURNAL_BYTES: Final = 64 << 10
MOST_JOURNALS: Final = 256


class FullError(Exception):
    """No further journal is possible, because one with the last number exists. The message names its ConfigMap."""


@dataclass(frozen=True, slots=True)
class Retention:
    """The time for which records of single claims are kept (`claims`), and daily sums (`days`)."""

    claims: datetime.timedelta = datetime.timedelta(days=30)
    days: datetime.timedelta = datetime.timedelta(days=400)


@dataclass(frozen=True, slots=True)
class Accounting:
    retention: Retention = Retention()
    # A label of pods and claims whose value is the user. Without the label the user is the pod's service account.
    user_label: str = ""


class Journal:
    def __init__(self, api: Api, namespace: str, retention: Retention) -> None:
        self._api = api
        self._namespace = namespace
        self._retention = retention
        # The creation time of each journal, by number.
        self._begun: dict[int, datetime.datetime] = {}
        self._days: set[datetime.date] = set()
        self._current = 0
        self._size = JOURNAL_BYTES  # as if full, so that the first line creates a new journal
        self._parts = 0

    async def load(self) -> Record:
        items, _ = await self._api.list(CONFIG_MAPS, self._namespace, USAGE_LABEL)
        record = usage.read(items)
        for problem in record.problems:
            _log.error("usage that cannot be read is left out: %s", problem)
        for each in items:
            if each["metadata"]["labels"][USAGE_LABEL] != usage.JOURNAL:
                continue
            # `record.problems` has the objects with an unknown name.
            with contextlib.suppress(ValueError):
                number = usage.journal_number(each["metadata"]["name"])
                self._begun[number] = datetime.datetime.fromisoformat(each["metadata"]["creationTimestamp"])
        self._current = max(self._begun, default=-1)
        self._days = set(record.days)
        return record

    async def append(self, holdings: Iterable[Holding]) -> None:
        text = ""
        for line in (each.line() for each in holdings):
            if text and len(text) + len(line) > JOURNAL_BYTES:
                await self._append(text)
                text = ""
            text += line + "\n"
        if text:
            await self._append(text)

    async def _append(self, text: str) -> None:
        if self._size + len(text) > JOURNAL_BYTES:
            await self._begin(text)
            return
        name = usage.journal_name(self._current)
        try:
            await self._api.patch(CONFIG_MAPS, self._namespace, name, {"data": {f"{self._parts:06}": text}})
        except ApiError as error:
            if not error.gone:
                raise
            _log.error("somebody deleted the ConfigMap %s, and what it said of usage", name)
            await self._begin(text)
            return
        self._parts, self._size = self._parts + 1, self._size + len(text)

    async def _begin(self, text: str) -> None:
        while True:
            if self._current >= usage.MOST_JOURNAL:
                raise FullError(
                    f"ConfigMap {usage.journal_name(self._current)} has the last number that a journal may have, which "
                    "the operator does not reach: delete it, or keep a copy under a name of your own, and start the "
                    "operator anew"
                )
            self._current += 1
            body = self._body(usage.journal_name(self._current), usage.JOURNAL, {"000000": text})
            try:
                await self._api.create(CONFIG_MAPS, self._namespace, body)
                break
            except ApiError as error:
                if error.reason != "AlreadyExists":
                    raise
        self._begun[self._current] = datetime.datetime.now(datetime.UTC)
        self._parts, self._size = 1, len(text)

    async def known(self, until: int) -> None:
        """Records that the journal has all holdings that ended before `until`, in seconds since 1970."""
        await self._put(HEAD_NAME, usage.HEAD, {"until": str(until)})

    async def fold(self, held: Mapping[tuple[str, int], Holding]) -> None:
        """Replaces the oldest journal by daily sums if it is old enough or if there are too many journals.

        Also deletes daily sums that are too old. `held` has the present holdings, which move to the newest journal.
        """
        now = datetime.datetime.now(datetime.UTC)
        oldest, *newer = sorted(self._begun) or [self._current]
        # The last line of the oldest journal is as old as the start of the next journal.
        if newer and (now - self._begun[newer[0]] > self._retention.claims or len(self._begun) > MOST_JOURNALS):
            await self._fold(oldest, held)
        for day in [day for day in self._days if now.date() - day > self._retention.days]:
            await self._delete(usage.day_name(day))
            self._days.discard(day)

    async def _fold(self, number: int, held: Mapping[tuple[str, int], Holding]) -> None:
        name = usage.journal_name(number)
        found = await self._find(name)
        problems: list[str] = []
        lines = {} if found is None else {each.key: each for each in usage.lines_of(found, problems)}
        if found is not None and problems:
            await self._set_aside(found, problems[0])
        days: dict[datetime.date, usage.Amounts] = {}
        for each in lines.values():
            if each.end is not None:
                for day, amounts in usage.by_day(each, 0, each.end + each.unknown, 0):
                    sums = days.setdefault(day, {})
                    for who, amount in amounts.items():
                        without_claim = (*who[:4], "")
                        sums[without_claim] = sums.get(without_claim, usage.Amount()) + amount
        for day, amounts in days.items():
            await self._add(day, number, amounts)
        if kept := [held[key] for key in lines if key in held]:
            await self.append(kept)
        await self._delete(name)
        del self._begun[number]

    async def _add(self, day: datetime.date, number: int, amounts: usage.Amounts) -> None:
        """Adds amounts of journal `number` to a day's sums. No effect if this journal has been added already."""
        name = usage.day_name(day)
        found = await self._find(name)
        kept = Day() if found is None else await self._readable(found)
        if kept.folded >= number:
            return
        for who, amount in amounts.items():
            kept.amounts[who] = kept.amounts.get(who, usage.Amount()) + amount
        kept.folded = number
        await self._put(name, usage.DAY, kept.data())
        self._days.add(day)

    async def _readable(self, day: Object) -> Day:
        """Reads the sums of a day. If they are unreadable, copies them to another ConfigMap and returns empty sums."""
        try:
            return Day.of_data(day.get("data") or {})
        except usage.UNREADABLE as error:
            await self._set_aside(day, repr(error))
            return Day()

    async def _set_aside(self, found: Object, problem: str) -> None:
        """Copies an unreadable object before it is overwritten or deleted, because a later release may read it.

        No effect if there is such a copy already.
        """
        name, data = found["metadata"]["name"], found.get("data") or {}
        for number in itertools.count():
            copy = usage.set_aside_name(name, number)
            kept = await self._find(copy)
            if kept is None:
                await self._api.create(CONFIG_MAPS, self._namespace, self._body(copy, usage.UNREADABLE_KIND, data))
                _log.error("what of usage in %s cannot be read (%s) is kept as ConfigMap %s", name, problem, copy)
            if kept is None or kept.get("data") == data:
                return

    async def _find(self, name: str) -> Object | None:
        try:
            return await self._api.get(CONFIG_MAPS, self._namespace, name)
        except ApiError as error:
            if error.gone:
                return None
            raise

    async def _put(self, name: str, kind: str, data: Mapping[str, str]) -> None:
        try:
            await self._api.patch(CONFIG_MAPS, self._namespace, name, {"data": dict(data)})
        except ApiError as error:
            if not error.gone:
                raise
            await self._api.create(CONFIG_MAPS, self._namespace, self._body(name, kind, data))

    async def _delete(self, name: str) -> None:
        if (found := await self._find(name)) is not None:
            await self._api.delete(CONFIG_MAPS, self._namespace, name, found["metadata"]["uid"])

    def _body(self, name: str, kind: str, data: Mapping[str, str]) -> Object:
        labels = {USAGE_LABEL: kind, MANAGER_LABEL: "remotegpu-operator"}
        return {"metadata": {"name": name, "namespace": self._namespace, "labels": labels}, "data": dict(data)}
