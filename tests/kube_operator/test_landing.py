"""Tests of the decision on which nodes a pod may be scheduled, and whether its gate must stay."""

from __future__ import annotations

import asyncio
import functools
import time
from types import SimpleNamespace
from typing import Any

import pytest

from remotegpu_operator.builders import pods
from remotegpu_operator.builders.landing import Node, Plugins, may_land, why_held_back
from remotegpu_operator.claims.landing import Landing
from remotegpu_operator.claims.stores import Stores
from remotegpu_operator.cluster.store import Store
from remotegpu_operator.handlers.nodes import changed

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
        # An update of the device plugin: the old pod and the new pod both serve.
        (BOTH, [plugin("a"), plugin("a", deletionTimestamp="now"), plugin("b")], {}, False),
        (BOTH, [plugin("a")], {}, True),
        (BOTH, [plugin("a")], ON_A, False),
        (BOTH, [plugin("a", "False"), plugin("b")], {}, True),
        (BOTH, [plugin("a", deletionTimestamp="now"), plugin("b")], {}, True),
        # The node reports that nothing is allocatable, so the scheduler does not choose it.
        ((node("a", "0"), node("b")), [plugin("b")], {}, False),
        ((node("a", "0", zone="a"), node("b")), [plugin("a", "False"), plugin("b")], ON_A, True),
        ((node("a", None, zone="a"), node("b")), [plugin("a", "False"), plugin("b")], ON_A, True),
        # No node has the device plugin, or there is no node: the scheduler's Event reports it.
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


def stored(name: str, version: int, **metadata: Any) -> dict[str, Any]:
    about = {"name": name, "uid": name, "resourceVersion": str(version), **metadata}
    offer = {MILLI: "2k"}
    return {"metadata": about, "spec": {}, "status": {"capacity": offer, "allocatable": offer}}


def stored_plugin(name: str, ready: str, version: int) -> dict[str, Any]:
    about = {"name": f"plugin-{name}", "namespace": "system", "uid": f"plugin-{name}", "resourceVersion": str(version)}
    return plugin(name, ready) | {"metadata": about}


class Parts:
    """Stands for the process that the handler of nodes calls: it has only what is woken by a node."""

    def __init__(self, nodes: Store) -> None:
        self.changed: list[str] = []
        self.pools = SimpleNamespace(wake=asyncio.Event())
        self.claims = SimpleNamespace(node_changed=self._node_changed)
        self.landing = Landing(None, "system", nodes, lambda: None)  # type: ignore[arg-type]
        nodes.on_change = functools.partial(changed, self)  # type: ignore[arg-type]

    def _node_changed(self, name: str) -> None:
        self.changed.append(name)
        self.landing.changed()


def test_many_pods_on_many_nodes_are_decided_soon_and_anew_when_a_node_or_plugin_changes() -> None:
    nodes = Stores().nodes
    parts = Parts(nodes)
    landing, plugins = parts.landing, parts.landing.plugins
    for number in range(1000):
        zone = "a" if number < 999 else "b"
        nodes.store(stored(f"n{number}", 1, labels={"zone": zone}))
        plugins.store(stored_plugin(f"n{number}", "True", 1))
    began = time.process_time()
    on_b = pod(nodeSelector={"zone": "b"})
    for number in range(5000):
        assert not landing.why_held_back(on_b | {"metadata": {"name": f"p{number}"}})
    assert time.process_time() - began < 1

    plugins.store(stored_plugin("n999", "False", 2))
    assert landing.why_held_back(on_b)
    assert not landing.why_held_back(pod(**ON_A))
    parts.changed.clear()
    nodes.store(stored("n999", 2, labels={"zone": "c"}))
    assert parts.changed == ["n999"]
    parts.pools.wake.clear()
    nodes.store(stored("n999", 3, labels={"zone": "c"}) | {"heartbeat": "a kubelet's"})
    assert parts.changed == ["n999"]
    assert not parts.pools.wake.is_set()
    assert not landing.why_held_back(on_b)
    plugins.forget("plugin-n1")
    assert landing.why_held_back(pod(**ON_A))
    nodes.forget("n1")
    assert parts.changed == ["n999", "n1"]
    assert parts.pools.wake.is_set()
    assert not landing.why_held_back(pod(**ON_A))
