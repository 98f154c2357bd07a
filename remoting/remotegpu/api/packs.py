"""The fields of a GPUPool about packing: moves of claims that leave fewer GPUs in use.

`crds/gpupools.yaml` defines each field.
"""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from remotegpu.api.durations import format_duration, parse_duration
from remotegpu.api.schedules import Schedule

# A request whose name begins so only asks for the plan.
DRY_RUN: Final = "dry-run"
_WINDOW: Final = "pack"


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
class PackStatus:
    """The last packing of a pool, or the last plan for it."""

    request: str = ""  # the last request that was answered
    phase: PackPhase = PackPhase.DONE
    started: str = ""  # when the last packing began; a plan alone does not count
    message: str = ""
    gpus_before: int = 0  # in use at the start
    gpus_after: int = 0  # in use when all planned moves have succeeded; at the end, what is in use
    moves: tuple[PackMove, ...] = ()
    stays: tuple[PackStays, ...] = ()
    recent: tuple[str, ...] = ()  # when the moves of the last hour began

    @classmethod
    def from_object(cls, stored: Mapping[str, Any]) -> "PackStatus":
        return cls(
            request=stored.get("request", ""),
            phase=PackPhase(stored.get("phase", PackPhase.DONE)),
            started=stored.get("started", ""),
            message=stored.get("message", ""),
            gpus_before=stored.get("gpusBefore", 0),
            gpus_after=stored.get("gpusAfter", 0),
            moves=tuple(map(PackMove.from_object, stored.get("moves", ()))),
            stays=tuple(map(PackStays.from_object, stored.get("stays", ()))),
            recent=tuple(stored.get("recent", ())),
        )

    def to_object(self) -> dict[str, Any]:
        return {
            "request": self.request,
            "phase": str(self.phase),
            "started": self.started,
            "message": self.message,
            "gpusBefore": self.gpus_before,
            "gpusAfter": self.gpus_after,
            "moves": [each.to_object() for each in self.moves],
            "stays": [each.to_object() for each in self.stays],
            "recent": list(self.recent),
        }


def due(spec: PackSpec, started: str, now: datetime.datetime) -> bool:
    """Whether the schedule asks for a packing now. `started` is when the last one began; empty if there was none."""
    if spec.every is None and spec.hours is None:
        return False
    if spec.hours is not None and not spec.hours.covers(now):
        return False
    every = DEFAULT_EVERY if spec.every is None else spec.every
    return not started or (now - datetime.datetime.fromisoformat(started)).total_seconds() >= every


# How often a pool is packed within its hours, if `every` does not say.
DEFAULT_EVERY: Final = 900
