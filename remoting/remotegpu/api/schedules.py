"""Windows of time in which a pool's suspendable claims give their shares to others.

`crds/gpupools.yaml` defines each field.
"""

import datetime
import zoneinfo
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

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
