"""Decides when a deleted pod loses its share: when the pod has ended, or when no kubelet can report its end.

All functions are pure. A pod may complete requests or write a checkpoint between SIGTERM and its end. So it keeps its
GPU until its end, as it keeps any other device of Kubernetes.
"""

import datetime
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

Object = dict[str, Any]

# The API server accepts a deleted pod's token for this long after the pod's `deletionTimestamp`.
MARGIN: Final = datetime.timedelta(seconds=60)
OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"

_ENDED: Final = frozenset({"Succeeded", "Failed"})


class Machine(Enum):
    """The state of a pod's node. A node that is not ready counts as THERE, because its containers may still run."""

    THERE = "there"
    GONE = "gone"
    OUT_OF_SERVICE = "out of service"


@dataclass(frozen=True, slots=True)
class Standing:
    """Whether a pod no longer needs its share (`over`), and `why`.

    `until` is the latest end of a pod that is being deleted and still needs its share.
    """

    over: bool
    why: str = ""
    until: datetime.datetime | None = None


def standing(pod: Object, machine: Machine, now: datetime.datetime) -> Standing:
    """Decides whether a pod still needs its share. `machine` is the state of the pod's node, if it has one."""
    if pod.get("status", {}).get("phase") in _ENDED:
        return Standing(True, "its pod has ended")  # even if finalizers keep the object
    if not being_deleted(pod):
        return Standing(False)
    if why := _why_nobody_says(pod, machine, now):
        return Standing(True, f"its pod was deleted, and {why}")
    return Standing(False, until=latest_end(pod))


def _why_nobody_says(pod: Object, machine: Machine, now: datetime.datetime) -> str:
    """Returns why no kubelet will report the end of a pod that is being deleted; empty if a kubelet may report it."""
    name = node_name(pod)
    if not name:
        return "was never bound to a node"
    if machine is Machine.GONE:
        return f"node {name} is gone"
    if machine is Machine.OUT_OF_SERVICE:
        return f"node {name} has the taint {OUT_OF_SERVICE}"
    if now >= latest_end(pod):
        return f"had not ended {int(MARGIN.total_seconds())} s after its grace period"
    return ""


def being_deleted(pod: Object) -> bool:
    return pod["metadata"].get("deletionTimestamp") is not None


def node_name(pod: Object) -> str:
    name: str = pod["spec"].get("nodeName") or ""
    return name


def latest_end(pod: Object) -> datetime.datetime:
    """Returns the latest time at which a pod that is being deleted loses its share.

    `deletionTimestamp` already includes the grace period.
    """
    return datetime.datetime.fromisoformat(pod["metadata"]["deletionTimestamp"]) + MARGIN


def machine_of(node: Object | None) -> Machine:
    """Returns the state of a node from its object; `node` is None if the API server has no such node."""
    if node is None:
        return Machine.GONE
    taints = (node.get("spec") or {}).get("taints") or ()
    return Machine.OUT_OF_SERVICE if any(each["key"] == OUT_OF_SERVICE for each in taints) else Machine.THERE
