"""Conditions of an object's status, in the form that all Kubernetes objects use."""

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

ConditionStatus = Literal["True", "False", "Unknown"]


def timestamp(when: datetime.datetime) -> str:
    """Returns a time in UTC as Kubernetes writes it: whole seconds."""
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class Condition:
    type: str
    status: ConditionStatus
    reason: str
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0

    @classmethod
    def from_object(cls, stored: Mapping[str, Any]) -> "Condition":
        return cls(
            type=stored["type"],
            status=stored["status"],
            reason=stored["reason"],
            message=stored.get("message", ""),
            last_transition_time=stored["lastTransitionTime"],
            observed_generation=stored.get("observedGeneration", 0),
        )

    def to_object(self) -> dict[str, Any]:
        return {
            "type": self.type,
            "status": self.status,
            "reason": self.reason,
            "message": self.message,
            "lastTransitionTime": self.last_transition_time,
            "observedGeneration": self.observed_generation,
        }


def with_condition(conditions: Iterable[Condition], new: Condition) -> tuple[Condition, ...]:
    """Returns the conditions with `new` in place of the old one of its type. An equal status keeps the old time."""
    kept = []
    for old in conditions:
        if old.type != new.type:
            kept.append(old)
        elif old.status == new.status:
            new = replace(new, last_transition_time=old.last_transition_time)
    return tuple(sorted((*kept, new), key=lambda condition: condition.type))
