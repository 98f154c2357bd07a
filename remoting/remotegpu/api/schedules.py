"""The schedules of a pool: windows in which suspendable claims give their shares to others, and packing.

Packing moves movable claims so that fewer GPUs are in use; it is also done on request.

`crds/gpupools.yaml` defines each field.
"""

import datetime
import re
import zoneinfo
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from remotegpu.api.durations import format_duration, parse_duration

DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


@dataclass(frozen=True, slots=True)
class Schedule:
    name: str
    start: datetime.time
    end: datetime.time  # if not after the start: on the next day
    days: tuple[str, ...] = DAYS  # the days on which it starts
    time_zone: str = "UTC"
    max_priority: int | None = None  # suspends claims up to this priority; None: any
    namespaces: tuple[str, ...] = ()  # suspends claims of these namespaces; empty: all
    labels: tuple[tuple[str, str], ...] = ()  # suspends claims with these labels

    @classmethod
    def from_object(cls, stored: Mapping[str, Any]) -> "Schedule":
        return cls(
            name=stored["name"],
            start=datetime.time.fromisoformat(stored["from"]),
            end=datetime.time.fromisoformat(stored["to"]),
            days=tuple(stored.get("days", DAYS)),
            time_zone=stored.get("timeZone", "UTC"),
            max_priority=stored.get("maxPriority"),
            namespaces=tuple(stored.get("namespaces", ())),
            labels=tuple(stored.get("matchLabels", {}).items()),
        )

    def to_object(self) -> dict[str, Any]:
        written: dict[str, Any] = {
            "name": self.name,
            "from": self.start.strftime("%H:%M"),
            "to": self.end.strftime("%H:%M"),
            "days": list(self.days),
            "timeZone": self.time_zone,
        }
        if self.max_priority is not None:
            written["maxPriority"] = self.max_priority
        if self.namespaces:
            written["namespaces"] = list(self.namespaces)
        if self.labels:
            written["matchLabels"] = dict(self.labels)
        return written

    @property
    def problem(self) -> str:
        """The reason why the schedule is invalid and so suspends no claim; empty if it is valid."""
        try:
            zoneinfo.ZoneInfo(self.time_zone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            return f"schedule {self.name}: there is no time zone {self.time_zone}; write one as Europe/Berlin"
        return ""

    def covers(self, now: datetime.datetime) -> bool:
        """Whether the time `now`, which must have a time zone, is within a window."""
        if self.problem:
            return False
        here = now.astimezone(zoneinfo.ZoneInfo(self.time_zone))
        today, time = DAYS[here.weekday()], here.time()
        yesterday = DAYS[here.weekday() - 1]
        if self.start < self.end:
            return today in self.days and self.start <= time < self.end
        return (today in self.days and time >= self.start) or (yesterday in self.days and time < self.end)

    def suspends(self, namespace: str, labels: Mapping[str, str], priority: int) -> bool:
        """Whether the schedule suspends a claim of this namespace, with these labels and this priority."""
        below = self.max_priority is None or priority <= self.max_priority
        meant = not self.namespaces or namespace in self.namespaces
        return below and meant and all(labels.get(key) == value for key, value in self.labels)


# How a request begins that asks for moves, and one that only asks for the plan.
NOW: Final = "now"
DRY_RUN: Final = "dry-run"
_REQUEST: Final = re.compile(f"({NOW}|{DRY_RUN})-[A-Za-z0-9._-]{{1,50}}")
_WINDOW: Final = "pack"
# How often a pool is packed within its hours, if `every` does not say.
DEFAULT_EVERY: Final = 900


@dataclass(frozen=True, slots=True)
class PackSpec:
    """When a pool is packed, and how much. Without `every` and `hours` it is packed only on request."""

    every: int | None = None  # seconds
    hours: Schedule | None = None  # only the window counts
    moves_per_hour: int = 12
    leave_alone: int = 600  # seconds

    @classmethod
    def from_object(cls, stored: Mapping[str, Any]) -> "PackSpec":
        window = {key: stored[key] for key in ("from", "to", "days", "timeZone") if key in stored}
        return cls(
            every=parse_duration(stored["every"]) if "every" in stored else None,
            hours=Schedule.from_object({"name": _WINDOW, **window}) if "from" in stored else None,
            moves_per_hour=stored.get("movesPerHour", cls().moves_per_hour),
            leave_alone=parse_duration(stored["leaveAlone"]) if "leaveAlone" in stored else cls().leave_alone,
        )

    def to_object(self) -> dict[str, Any]:
        written: dict[str, Any] = {
            "movesPerHour": self.moves_per_hour,
            "leaveAlone": format_duration(self.leave_alone),
        }
        if self.every is not None:
            written["every"] = format_duration(self.every)
        if self.hours is not None:
            window = self.hours.to_object()
            written |= {key: window[key] for key in ("from", "to", "days", "timeZone")}
        return written


class PackPhase(StrEnum):
    PLANNED = "Planned"
    MOVING = "Moving"
    DONE = "Done"


@dataclass(frozen=True, slots=True)
class PackMove:
    """A move of a claim. `result` is empty until it begins; `message` is why it failed."""

    claim: str  # "namespace/name"
    source: str
    target: str
    result: str = ""
    message: str = ""

    @classmethod
    def from_object(cls, stored: Mapping[str, Any]) -> "PackMove":
        ends = stored.get("result", ""), stored.get("message", "")
        return cls(stored["claim"], stored["from"], stored["to"], *ends)

    def to_object(self) -> dict[str, Any]:
        written = {"claim": self.claim, "from": self.source, "to": self.target}
        more = {"result": self.result, "message": self.message}
        return written | {key: value for key, value in more.items() if value}


# Results of a move. A move that has not begun has none.
MOVING: Final = "Moving"
MOVED: Final = "Moved"
FAILED: Final = "Failed"


@dataclass(frozen=True, slots=True)
class PackStays:
    """Claims that stay where they are for one reason."""

    why: str
    count: int
    claims: tuple[str, ...] = ()  # the first of them

    @classmethod
    def from_object(cls, stored: Mapping[str, Any]) -> "PackStays":
        return cls(stored["why"], stored["count"], tuple(stored.get("claims", ())))

    def to_object(self) -> dict[str, Any]:
        return {"why": self.why, "count": self.count, "claims": list(self.claims)}


@dataclass(frozen=True, slots=True)
class PackFailure:
    """A claim whose move failed. The schedule leaves it alone for a time."""

    uid: str
    at: str

    @classmethod
    def from_object(cls, stored: Mapping[str, Any]) -> "PackFailure":
        return cls(stored["uid"], stored["at"])

    def to_object(self) -> dict[str, Any]:
        return {"uid": self.uid, "at": self.at}


@dataclass(frozen=True, slots=True)
class PackStatus:
    """The last packing of a pool, or the last plan for it."""

    request: str = ""  # the last request that was answered
    phase: PackPhase = PackPhase.DONE
    scheduled: bool = False  # the schedule asked for the last packing
    started: str = ""  # when the last packing began; a plan alone does not count
    message: str = ""
    gpus_before: int = 0  # in use at the start
    gpus_after: int = 0  # in use when all planned moves have succeeded; at the end, what is in use
    moves: tuple[PackMove, ...] = ()
    stays: tuple[PackStays, ...] = ()
    recent: tuple[str, ...] = ()  # when the moves of the last hour began
    failed: tuple[PackFailure, ...] = ()  # in the last day

    @classmethod
    def from_object(cls, stored: Mapping[str, Any]) -> "PackStatus":
        return cls(
            request=stored.get("request", ""),
            phase=PackPhase(stored.get("phase", PackPhase.DONE)),
            scheduled=stored.get("scheduled", False),
            started=stored.get("started", ""),
            message=stored.get("message", ""),
            gpus_before=stored.get("gpusBefore", 0),
            gpus_after=stored.get("gpusAfter", 0),
            moves=tuple(map(PackMove.from_object, stored.get("moves", ()))),
            stays=tuple(map(PackStays.from_object, stored.get("stays", ()))),
            recent=tuple(stored.get("recent", ())),
            failed=tuple(map(PackFailure.from_object, stored.get("failed", ()))),
        )

    def to_object(self) -> dict[str, Any]:
        return {
            "request": self.request,
            "phase": str(self.phase),
            "scheduled": self.scheduled,
            "started": self.started,
            "message": self.message,
            "gpusBefore": self.gpus_before,
            "gpusAfter": self.gpus_after,
            "moves": [each.to_object() for each in self.moves],
            "stays": [each.to_object() for each in self.stays],
            "recent": list(self.recent),
            "failed": [each.to_object() for each in self.failed],
        }


def due(spec: PackSpec, started: str, now: datetime.datetime) -> bool:
    """Whether the schedule asks for a packing now. `started` is when the last one began; empty if there was none."""
    if spec.every is None and spec.hours is None:
        return False
    if spec.hours is not None and not spec.hours.covers(now):
        return False
    every = DEFAULT_EVERY if spec.every is None else spec.every
    # A time in the future is from a clock that was wrong.
    return not started or abs((now - datetime.datetime.fromisoformat(started)).total_seconds()) >= every


def is_request(text: str) -> bool:
    """Whether the value of the annotation asks for something."""
    return _REQUEST.fullmatch(text) is not None
