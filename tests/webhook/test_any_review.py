"""Tests with admission reviews in which parts of a pod or template have wrong types."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.any_object import TEXTS

from remotegpu_operator.webhook.mutate import ReviewError, answer
from remotegpu_operator.webhook.rules import SPECS

Json = Any
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**12) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
POD: Json = {
    "metadata": {"name": "p", "annotations": {"remotegpu.io/pool": "a"}, "labels": {"a": "b"}},
    "spec": {
        "containers": [
            {
                "name": "c",
                "image": "i",
                "command": ["x"],
                "env": [{"name": "A", "value": "b"}],
                "resources": {"limits": {"remotegpu/fraction": "0.25"}, "requests": {"cpu": "1"}},
                "volumeMounts": [{"name": "v", "mountPath": "/x"}],
            }
        ],
        "initContainers": [{"name": "i", "restartPolicy": "Always", "resources": {"limits": {"remotegpu/milli": "5"}}}],
        "volumes": [{"name": "v", "emptyDir": {}}],
        "schedulingGates": [{"name": "x"}],
        "tolerations": [{"key": "a"}],
    },
}


def paths(document: Json, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    parts = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [path] * bool(path) + [each for key, part in parts for each in paths(part, (*path, key))]


def changed(changes: list[tuple[tuple[Any, ...], Json]]) -> Json:
    document = copy.deepcopy(POD)
    for path, value in changes:
        part = document
        try:
            for key in path[:-1]:
                part = part[key]
            part[path[-1]] = value
        except (IndexError, KeyError, TypeError):
            continue  # an earlier change has replaced this part
    return document


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(sorted(SPECS)),
    st.lists(st.tuples(st.sampled_from(paths(POD)), JSON), min_size=1, max_size=3),
    st.sampled_from(["CREATE", "UPDATE"]),
)
def test_a_wrong_type_is_the_objects_own_error(
    resource: tuple[str, str], changes: list[tuple[tuple[Any, ...], Json]], operation: str
) -> None:
    document = changed(changes)
    for key in reversed(SPECS[resource][:-1]):
        document = {key: document}
    kind = {"group": resource[0], "version": "v1", "resource": resource[1]}
    review = {"request": {"uid": "u", "resource": kind, "operation": operation, "object": document}}
    try:
        response = answer(review)["response"]
    except ReviewError:
        assert resource[1] == "pods", "other resources are left to the API server"
        return
    json.dumps(response)
    assert response["allowed"] or response["status"]["message"]


def test_the_pod_as_it_should_be_gets_its_share() -> None:
    kind = {"group": "", "version": "v1", "resource": "pods"}
    review = {"request": {"uid": "u", "resource": kind, "operation": "CREATE", "object": copy.deepcopy(POD)}}
    assert "patch" in answer(review)["response"]
