"""Which nodes a pod may land on, and when its gate must stay: pure functions."""

from __future__ import annotations

from typing import Any

import pytest

from remotegpu_operator.builders import pods
from remotegpu_operator.builders.landing import Node, Plugins, may_land, why_held_back

MILLI = "remotegpu/milli"


def node(name: str, allocatable: str | None = "2k", taints: Any = (), **labels: str) -> Node:
    amounts = {} if allocatable is None else {MILLI: allocatable}
    capacity = {} if allocatable is None else {MILLI: "2k"}
    return Node.of(
        {
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": list(taints)},
            "status": {"capacity": capacity, "allocatable": amounts},
        }
    )


def plugin(name: str, ready: str = "True", **metadata: Any) -> dict[str, Any]:
    conditions = [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": ready}]
    return {"metadata": metadata, "spec": {"nodeName": name}, "status": {"conditions": conditions}}


def pod(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "train", "namespace": "team"}, "spec": spec}


ON_A = {"nodeSelector": {"zone": "a"}}
BOTH = (node("a", zone="a"), node("b", zone="b"))


@pytest.mark.parametrize(
    ("nodes", "plugins", "spec", "held"),
    [
        (BOTH, [plugin("a"), plugin("b")], {}, False),
        # An update: the next one serves beside the last one.
        (BOTH, [plugin("a"), plugin("a", deletionTimestamp="now"), plugin("b")], {}, False),
        (BOTH, [plugin("a")], {}, True),
        (BOTH, [plugin("a")], ON_A, False),
        (BOTH, [plugin("a", "False"), plugin("b")], {}, True),
        (BOTH, [plugin("a", deletionTimestamp="now"), plugin("b")], {}, True),
        # Once the node says so itself, the scheduler keeps away from it.
        ((node("a", "0"), node("b")), [plugin("b")], {}, False),
        ((node("a", "0", zone="a"), node("b")), [plugin("a", "False"), plugin("b")], ON_A, True),
        ((node("a", None, zone="a"), node("b")), [plugin("a", "False"), plugin("b")], ON_A, True),
        # No node was meant to have it, or there is none: the scheduler's event says so.
        ((node("a", None),), [], {}, False),
        ((), [], {}, False),
    ],
)
def test_a_gate_stays_while_a_node_would_turn_the_pod_away(nodes: Any, plugins: Any, spec: Any, held: bool) -> None:
    assert bool(why_held_back(pod(**spec), nodes, Plugins.of(plugins))) is held


def required(*terms: Any) -> dict[str, Any]:
    selector = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": selector}}


def expressions(*each: tuple[Any, ...]) -> dict[str, Any]:
    return {"matchExpressions": [dict(zip(("key", "operator", "values"), one, strict=False)) for one in each]}


TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("spec", "lands"),
    [
        ({}, True),
        ({"nodeSelector": {"zone": "a"}}, True),
        ({"nodeSelector": {"zone": "b"}}, False),
        (required(expressions(("zone", "In", ["a", "b"]), ("size", "Gt", ["3"]))), True),
        (required(expressions(("zone", "NotIn", ["a"]))), False),
        (required(expressions(("zone", "NotIn", ["a"])), expressions(("zone", "Exists"))), True),
        (required(expressions(("other", "DoesNotExist"), ("size", "Lt", ["5"]))), True),
        (required(expressions(("zone", "Gt", ["1"]))), False),
        (required({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}), False),
        (required({}), False),
    ],
)
def test_where_a_pod_may_land(spec: Any, lands: bool) -> None:
    assert may_land(pod(**spec), node("a", zone="a", size="4")) is lands


@pytest.mark.parametrize(
    ("effect", "tolerations", "lands"),
    [
        ("NoSchedule", [], False),
        ("NoExecute", [], False),
        ("PreferNoSchedule", [], True),
        ("NoSchedule", [{"key": "gpu", "operator": "Exists"}], True),
        ("NoSchedule", [{"key": "gpu", "value": "no"}], False),
        ("NoExecute", [{"operator": "Exists", "effect": "NoSchedule"}], False),
    ],
)
def test_taints(effect: str, tolerations: Any, lands: bool) -> None:
    assert may_land(pod(tolerations=tolerations), node("a", taints=[TAINT | {"effect": effect}])) is lands


def test_what_a_kubelet_says_that_would_not_start_a_pod() -> None:
    said = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices present"}
    assert "no healthy devices present" in pods.turned_away(pod(nodeName="a") | {"status": said})
    assert not pods.turned_away(pod(nodeName="a") | {"status": {"phase": "Failed", "reason": "Evicted"}})
    assert not pods.turned_away(pod())
