"""Usage records of the operator, which say who held which part of a GPU for how long, and their sums. Pure.

The operator stores them in ConfigMaps of its namespace. Each line of a *journal* is the whole state of one holding; the
last line of a holding counts. A *day* has the sums of older holdings. The *head* has the time up to which the record is
complete. docs/usage.md has the format.
"""

import datetime
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from remotegpu.api.claims import ClaimStatus

# The label of these ConfigMaps, and its values.
USAGE_LABEL: Final = "remotegpu.io/usage"
JOURNAL: Final = "journal"
DAY: Final = "day"
HEAD: Final = "head"
# The kind of an object that could not be read when it was to be summed. No part of ours reads, changes or deletes it.
UNREADABLE_KIND: Final = "unreadable"
_DAY_SECONDS: Final = 86_400
# The largest number of eight digits, which allows 6 TiB of journals.
MOST_JOURNAL: Final = 99_999_999
# Errors from stored data that cannot be read.
UNREADABLE: Final = (ValueError, KeyError, TypeError, RecursionError)
# The latest valid time, in seconds since 1970: the year 2200.
_LATEST: Final = 7_258_118_400
# The largest valid amount, in bytes times seconds.
_MOST: Final = 1 << 96


def _check_numbers(most: int, *values: Any) -> None:
    if not all(isinstance(each, int) and not isinstance(each, bool) and 0 <= each <= most for each in values):
        raise ValueError("a number is none, or too large")


def _check_texts(*values: Any) -> None:
    if not all(isinstance(each, str) for each in values):
        raise TypeError("a name is no text")


@dataclass(frozen=True, slots=True)
class Share:
    """A claim's share of all its GPUs of one model together."""

    model: str
    milli: int
    memory: int  # bytes


def shares_of(status: ClaimStatus) -> tuple[Share, ...]:
    found: dict[str, Share] = {}
    for each in status.allocations:
        before = found.get(each.model, Share(each.model, 0, 0))
        found[each.model] = replace(before, milli=before.milli + each.milli, memory=before.memory + each.memory)
    return tuple(found[model] for model in sorted(found))


@dataclass(frozen=True, slots=True)
class Holding:
    """The shares that a claim held unchanged from `start` to `end`. Times are whole seconds since 1970."""

    uid: str
    namespace: str
    claim: str
    user: str
    pool: str
    shares: tuple[Share, ...]
    start: int
    end: int | None = None
    # Seconds after `end` in which no operator watched. The holding ended at an unknown time within them.
    unknown: int = 0
    # Seconds with a session, without the seconds since `in_use_since`.
    used: int = 0
    in_use_since: int | None = None
    # The end of the last session; before the first session, the time when the claim got its share.
    idle_since: int = 0
    # Whether the shares were never stored in the claim's status, although the operator was about to do so.
    void: bool = False
    # The creation of the claim; 0: not recorded.
    created: int = 0

    @property
    def key(self) -> tuple[str, int]:
        return self.uid, self.start

    def used_until(self, now: int) -> int:
        return self.used + (max(0, now - self.in_use_since) if self.in_use_since is not None else 0)

    def told(self, in_use: bool, now: int) -> "Holding":
        """Returns the holding with `in_use` as its state since `now`: whether it has a session."""
        if in_use == (self.in_use_since is not None):
            return self
        if in_use:
            return replace(self, in_use_since=now)
        return replace(self, used=self.used_until(now), in_use_since=None, idle_since=now)

    def ended(self, end: int, unknown: int = 0) -> "Holding":
        end = max(end, self.start)
        used = min(self.used_until(end), end - self.start)
        return replace(self, end=end, unknown=unknown, used=used, in_use_since=None)

    def line(self) -> str:
        """Returns the journal's line, without the fields that have their default value."""
        stored = {name: getattr(self, name) for name in self.__slots__}
        stored["shares"] = [[each.model, each.milli, each.memory] for each in self.shares]
        return json.dumps({name: value for name, value in stored.items() if value not in (None, 0, False, "")})

    @classmethod
    def of_line(cls, line: str) -> "Holding":
        """Reads a line of a journal. Raises one of UNREADABLE if the line is invalid."""
        stored = json.loads(line)
        if not isinstance(stored, dict):
            raise TypeError("a line is no object")
        known = {name: stored[name] for name in cls.__slots__ if name in stored}
        named = {name: stored.get(name, "") for name in ("namespace", "claim", "user", "pool")}
        made = cls(**known | named | {"shares": tuple(Share(*each) for each in stored["shares"])})
        _check_numbers(_LATEST, made.start, made.unknown, made.used, made.idle_since, made.created)
        _check_numbers(_LATEST, *(each for each in (made.end, made.in_use_since) if each is not None))
        _check_numbers(_MOST, *(number for each in made.shares for number in (each.milli, each.memory)))
        _check_texts(made.uid, *named.values(), *(each.model for each in made.shares))
        return made


# Namespace, user, pool, model and claim; in the stored sums of a day the claim is empty.
Who = tuple[str, str, str, str, str]


@dataclass(frozen=True, slots=True)
class Amount:
    """Sums of holdings. `milli`, `used` and `unknown` are thousandths of a GPU times seconds."""

    milli: int = 0
    used: int = 0
    memory: int = 0  # bytes times seconds
    unknown: int = 0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(*(getattr(self, name) + getattr(other, name) for name in Amount.__slots__))


Amounts = dict[Who, Amount]


@dataclass(slots=True)
class Day:
    """The sums of a day over all holdings whose end is in a journal with a number up to `folded`."""

    folded: int = -1
    amounts: Amounts = field(default_factory=dict)

    def data(self) -> dict[str, str]:
        rows = [[*who[:4], *(getattr(each, name) for name in Amount.__slots__)] for who, each in self.amounts.items()]
        return {"folded": str(self.folded), "rows": "\n".join(map(json.dumps, rows))}

    @classmethod
    def of_data(cls, data: Mapping[str, str]) -> "Day":
        """Reads the sums. Raises one of UNREADABLE if they are invalid."""
        found: Amounts = {}
        for line in data.get("rows", "").splitlines():
            namespace, user, pool, model, *numbers = json.loads(line)
            _check_texts(namespace, user, pool, model)
            _check_numbers(_MOST, *numbers)
            found[namespace, user, pool, model, ""] = Amount(*numbers)
        return cls(int(data["folded"]), found)


@dataclass(slots=True)
class Record:
    """All usage records."""

    until: int = 0
    holdings: dict[tuple[str, int], Holding] = field(default_factory=dict)
    # The journal with the last line of each holding.
    journals: dict[tuple[str, int], int] = field(default_factory=dict)
    days: dict[datetime.date, Day] = field(default_factory=dict)
    # A line for each unreadable part: the ConfigMap's name and the error.
    problems: list[str] = field(default_factory=list)

    def open(self) -> list[Holding]:
        return [each for each in self.holdings.values() if each.end is None and not each.void]


def read(config_maps: Iterable[Mapping[str, Any]]) -> Record:
    """Reads ConfigMaps that have USAGE_LABEL. Leaves out unreadable parts and lists them in `problems`."""
    record = Record()
    journals: list[tuple[int, Mapping[str, Any]]] = []
    for each in config_maps:
        name, data = each["metadata"]["name"], each.get("data") or {}
        kind = each["metadata"]["labels"][USAGE_LABEL]
        try:
            if kind == JOURNAL:
                journals.append((journal_number(name), each))
            elif kind == DAY:
                record.days[day_of(name)] = Day.of_data(data)
            elif kind == HEAD:
                _check_numbers(_LATEST, until := int(data["until"]))
                record.until = until
        except UNREADABLE as error:
            record.problems.append(f"{name}: {error!r}")
    for number, each in sorted(journals, key=lambda pair: pair[0]):
        for holding in lines_of(each, record.problems):
            record.holdings[holding.key] = holding
            record.journals[holding.key] = number
    return record


def lines_of(journal: Mapping[str, Any], problems: list[str]) -> Iterator[Holding]:
    """Yields the journal's holdings in the order in which they were written."""
    for key, text in sorted((journal.get("data") or {}).items()):
        for line in text.splitlines():
            try:
                yield Holding.of_line(line)
            except UNREADABLE as error:
                problems.append(f"{journal['metadata']['name']}, {key}: {error!r}")


def journal_name(number: int) -> str:
    return f"remotegpu-usage-{JOURNAL}-{number:08}"


def journal_number(name: str) -> int:
    """Returns the number in a journal's name. Raises ValueError for any other name.

    A number of more than eight digits is invalid too: no journal could follow it.
    """
    digits = name.rpartition("-")[2]
    if len(digits) > len(str(MOST_JOURNAL)) or journal_name(number := int(digits)) != name:
        raise ValueError("its name is none of a journal")
    return number


def set_aside_name(name: str, number: int) -> str:
    """Returns the name of the copy of an unreadable object with this name."""
    return f"{name}-{UNREADABLE_KIND}-{number}"


def day_name(day: datetime.date) -> str:
    return f"remotegpu-usage-{DAY}-{day.isoformat()}"


def day_of(name: str) -> datetime.date:
    return datetime.date.fromisoformat(name.removeprefix(f"remotegpu-usage-{DAY}-"))


def amounts(record: Record, since: int, until: int) -> Amounts:
    """Returns the amounts held between two times.

    The stored sum of a day counts as a whole, from the day of `since` on. Open holdings count up to `record.until`.
    """
    found: Amounts = {}
    for day, kept in record.days.items():
        if date_at(since) <= day and start_of(day) < until:
            for who, amount in kept.amounts.items():
                found[who] = found.get(who, Amount()) + amount
    for key, holding in record.holdings.items():
        for day, parts in by_day(holding, since, until, record.until):
            if (kept_day := record.days.get(day)) is None or kept_day.folded < record.journals[key]:
                for who, amount in parts.items():
                    found[who] = found.get(who, Amount()) + amount
    return found


def by_day(holding: Holding, since: int, until: int, known_until: int) -> Iterator[tuple[datetime.date, Amounts]]:
    """Yields the amounts of a holding between two times, for each day in UTC."""
    if holding.void:
        return
    end = max(holding.start, known_until) if holding.end is None else holding.end
    first, last = max(since, holding.start), min(until, end + holding.unknown)
    if first >= last:
        return
    for number in range(first // _DAY_SECONDS, -(-last // _DAY_SECONDS)):
        begin, stop = max(first, number * _DAY_SECONDS), min(last, (number + 1) * _DAY_SECONDS)
        held = max(0, min(stop, end) - begin)
        unknown = max(0, stop - max(begin, end))
        # The record has no times of single sessions: their sum is spread evenly over the holding.
        used = holding.used_until(end) * held // (end - holding.start) if end > holding.start else 0
        yield (
            date_at(begin),
            {
                (holding.namespace, holding.user, holding.pool, share.model, holding.claim): Amount(
                    share.milli * held, share.milli * used, share.memory * held, share.milli * unknown
                )
                for share in holding.shares
            },
        )


def date_at(seconds: int) -> datetime.date:
    return datetime.datetime.fromtimestamp(max(0, seconds), datetime.UTC).date()


def start_of(day: datetime.date) -> int:
    return int(datetime.datetime.combine(day, datetime.time(), datetime.UTC).timestamp())
