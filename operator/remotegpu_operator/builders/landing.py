"""Finds the nodes on which a pod may be scheduled by its spec, and those whose kubelet would reject the pod.

A kubelet without a running device plugin rejects a pod permanently (`UnexpectedAdmissionError`). The scheduler sees up
to ten seconds later that the plugin has stopped. So a pod is held back while it may be scheduled on such a node.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from remotegpu.api.kubernetes import MILLI
from remotegpu.api.quantities import parse_quantity
from remotegpu_operator.allocation.inventory import some
from remotegpu_operator.builders.appliances import tolerates

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Node:
    """The parts of a node that matter for scheduling a pod.

    `known`: the kubelet has or had our resource. `offers`: the resource is allocatable, so the scheduler may choose the
    node.
    """

    name: str
    labels: dict[str, str]
    taints: tuple[Object, ...]
    known: bool
    offers: bool

    @classmethod
    def of(cls, stored: Object) -> "Node":
        status = stored.get("status") or {}
        allocatable = (status.get("allocatable") or {}).get(MILLI, "0")
        return cls(
            name=stored["metadata"]["name"],
            labels=stored["metadata"].get("labels") or {},
            taints=tuple((stored.get("spec") or {}).get("taints") or ()),
            known=MILLI in (status.get("capacity") or {}),
            offers=parse_quantity(str(allocatable)) > 0,
        )


@dataclass(frozen=True, slots=True)
class Plugins:
    """The names of the nodes with a pod of the device plugin, and of those whose pod is ready and not being deleted."""

    placed: frozenset[str]
    serving: frozenset[str]

    @classmethod
    def of(cls, pods: Iterable[Object]) -> "Plugins":
        placed = {(pod["spec"].get("nodeName", ""), _serves(pod)) for pod in pods}
        return cls(frozenset(node for node, _ in placed), frozenset(node for node, serves in placed if serves))


def _serves(plugin: Object) -> bool:
    conditions = plugin.get("status", {}).get("conditions") or ()
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return ready and "deletionTimestamp" not in plugin["metadata"]


def asked_of_node(pod: Object) -> Object:
    """Returns the parts of a pod's spec that select nodes. Thousands of pods may have the same parts."""
    spec = pod["spec"]
    affinity = {"nodeAffinity": (spec.get("affinity") or {}).get("nodeAffinity")}
    return {
        "spec": {
            "nodeSelector": spec.get("nodeSelector"),
            "tolerations": spec.get("tolerations"),
            "affinity": affinity,
        }
    }


def why_held_back(pod: Object, nodes: Collection[Node], plugins: Plugins) -> str:
    """Returns why the pod's scheduling gate must stay; empty if the gate may be removed."""
    unserved = (node for node in nodes if node.offers and node.name not in plugins.serving)
    if turning_away := [node.name for node in unserved if may_land(pod, node)]:
        which = "node" if len(turning_away) == 1 else "nodes"
        return (
            f"{which} {some(turning_away)} would turn the pod away, for the device plugin there is not ready: it is "
            "let go when it is ready, or when the node no longer offers remotegpu/milli; see the pods with the label "
            "app.kubernetes.io/component=deviceplugin"
        )
    if any(node.offers and may_land(pod, node) for node in nodes):
        return ""
    lacking = [node.name for node in nodes if (node.known or node.name in plugins.placed) and may_land(pod, node)]
    if lacking:
        return (
            f"no node that the pod may land on offers remotegpu/milli: the device plugin of {some(lacking)} does not "
            "serve yet; see the pods with the label app.kubernetes.io/component=deviceplugin"
        )
    return ""  # No suitable node has the device plugin: the scheduler reports what is missing.


def may_land(pod: Object, node: Node) -> bool:
    """Whether selector, required affinity and taints allow the pod on the node. Other conditions change too often."""
    spec = pod["spec"]
    if any(node.labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    if not all(_tolerated(taint, spec.get("tolerations") or ()) for taint in node.taints):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return required is None or any(_matches(term, node) for term in required["nodeSelectorTerms"])


def _tolerated(taint: Object, tolerations: Iterable[Object]) -> bool:
    return taint["effect"] == "PreferNoSchedule" or any(tolerates(each, taint) for each in tolerations)


def _matches(term: Object, node: Node) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False  # Kubernetes: an empty term selects nothing
    named = {"metadata.name": node.name}
    return all(_holds(each, node.labels) for each in expressions) and all(_holds(each, named) for each in fields)


def _holds(requirement: Object, labels: dict[str, str]) -> bool:
    found, values = labels.get(requirement["key"]), requirement.get("values") or []
    return _OPERATORS[requirement["operator"]](found, values)


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _greater(found: str | None, values: list[str]) -> bool:
    have, bound = _number(found), _number(values[0])
    return have is not None and bound is not None and have > bound


def _less(found: str | None, values: list[str]) -> bool:
    have, bound = _number(found), _number(values[0])
    return have is not None and bound is not None and have < bound


_OPERATORS: Final[dict[str, Callable[[str | None, list[str]], bool]]] = {
    "In": lambda found, values: found in values,
    "NotIn": lambda found, values: found not in values,
    "Exists": lambda found, _: found is not None,
    "DoesNotExist": lambda found, _: found is None,
    "Gt": _greater,
    "Lt": _less,
}
