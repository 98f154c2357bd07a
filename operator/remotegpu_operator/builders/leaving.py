"""Decides when a deleted pod gives its share back: when it has ended, or when no kubelet is left to report its end.

Pure. Between SIGTERM and its end a pod completes requests and writes a checkpoint, so it needs its GPU, as it does any
other device of Kubernetes.
"""

import datetime
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

Object = dict[str, Any]

# The API server accepts the token of a deleted pod for as long after its `deletionTimestamp`.
MARGIN: Final = datetime.timedelta(seconds=60)
OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"

_ENDED: Final = frozenset({"Succeeded", "Failed"})


class Machine(Enum):
    """State of a pod's node. A node that is not ready is THERE: its containers may run."""

    THERE = "there"
    GONE = "gone"
    OUT_OF_SERVICE = "out of service"


@dataclass(frozen=True, slots=True)
class Standing:
    """Whether a pod needs its share no more, and why; `until`: its latest end, if it is being deleted."""

    over: bool
    why: str = ""
    until: datetime.datetime | None = None


def standing(pod: Object, machine: Machine, now: datetime.datetime) -> Standing:
    """Decides for a pod. `machine` is the state of the node that the pod is bound to, if it is bound to one."""
    if pod.get("status", {}).get("phase") in _ENDED:
        return Standing(True, "its pod has ended")  # whatever finalizers still hold the object
    if not being_deleted(pod):
        return Standing(False)
    if why := _why_nobody_says(pod, machine, now):
        return Standing(True, f"its pod was deleted, and {why}")
    return Standing(False, until=latest_end(pod))


def _why_nobody_says(pod: Object, machine: Machine, now: datetime.datetime) -> str:
    """Returns why no kubelet will report the end of a pod that is being deleted; empty if its kubelet will."""
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
    """Returns when a pod that is being deleted loses its share. `deletionTimestamp` includes the grace period."""
    return datetime.datetime.fromisoformat(pod["metadata"]["deletionTimestamp"]) + MARGIN


def machine_of(node: Object | None) -> Machine:
    """Returns the state of a node. `node` is the API server's object; None if there is none."""
    if node is None:
        return Machine.GONE
    taints = (node.get("spec") or {}).get("taints") or ()
    return Machine.OUT_OF_SERVICE if any(each["key"] == OUT_OF_SERVICE for each in taints) else Machine.THERE
