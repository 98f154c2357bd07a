"""Property tests of the rewriting of pods, with amounts that the tests compute themselves, and of AdmissionReviews."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.chart import Object
from support.patches import applied

from remotegpu.api.kubernetes import FRACTION, MILLI
from remotegpu.api.pods import Pod, effective_milli
from remotegpu_operator.webhook import body
from remotegpu_operator.webhook.mutate import ReviewError, answer
from remotegpu_operator.webhook.patch import difference
from remotegpu_operator.webhook.rules import ENTRIES

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("a/~", max_size=2), inner, max_size=4),
)


@given(json_values, json_values)
def test_a_patch_turns_the_old_document_into_the_new_one(old: Any, new: Any) -> None:
    assert applied(old, list(difference(old, new))) == new


def test_a_patch_says_only_what_differs() -> None:
    old = {"a": {"b": [1, {"c": 2}], "x/y": 1}, "d": 3}
    new = {"a": {"b": [1, {"c": 4}, 5], "~": 0}, "d": 3}
    operations = {operation.pop("path"): operation for operation in difference(old, new)}
    assert operations == {
        "/a/b/1/c": {"op": "replace", "value": 4},
        "/a/b/-": {"op": "add", "value": 5},
        "/a/x~1y": {"op": "remove"},
        "/a/~0": {"op": "add", "value": 0},
    }


shares = st.sampled_from([None, 1, 2, 3, 7])


@given(st.lists(st.tuples(st.booleans(), shares), max_size=5), st.lists(shares, min_size=1, max_size=3))
def test_a_pods_share_is_the_most_that_it_uses_at_any_time(init: list[tuple[bool, int | None]], app: list[Any]) -> None:
    """The expected share comes from a simulation of the pod.

    Init containers run one after the other, sidecars from their start to the end, and then all other containers at the
    same time.
    """
    moments, sidecars = [], 0
    for stays, share in init:
        moments.append(sidecars + (share or 0))
        sidecars += (share or 0) if stays else 0
    moments.append(sidecars + sum(share or 0 for share in app))

    def container(share: int | None) -> Object:
        return {"resources": {"limits": {MILLI: str(share)}} if share else {}}

    spec = {
        "initContainers": [container(s) | ({"restartPolicy": "Always"} if stays else {}) for stays, s in init],
        "containers": [container(share) for share in app],
    }
    assert effective_milli(Pod.of({"spec": spec})) == max(moments)


def review(resource: tuple[str, str], document: Any, operation: str = "CREATE", **more: Any) -> Object:
    group, plural = resource
    kind = {"group": group, "version": "v1", "resource": plural}
    return {"request": {"uid": "u", "resource": kind, "operation": operation, "object": document, **more}}


def rewritten(resource: tuple[str, str], document: Any, **more: Any) -> tuple[Any, Object]:
    """Returns the document after the webhook's patch, and the complete response."""
    response = answer(review(resource, document, **more))["response"]
    patch = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
    return applied(document, patch), response


amounts = st.dictionaries(
    st.sampled_from([FRACTION, MILLI, "cpu"]), st.sampled_from(["0", "250m", "500m", "1", "1k", "7"]), max_size=2
)
containers = st.builds(
    lambda name, limits: {"name": name, "resources": {"limits": limits}}, st.text(max_size=2), amounts
)
specs = st.fixed_dictionaries(
    {"containers": st.lists(containers, min_size=1, max_size=3)},
    optional={"initContainers": st.lists(containers, max_size=2), "volumes": st.just([{"name": "v"}])},
)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
@given(spec=specs)
def test_done_twice_it_is_as_done_once(entry: Any, spec: Object) -> None:
    document = spec
    for key in reversed(entry.spec):
        document = {key: document}
    before = copy.deepcopy(document)
    once, response = rewritten(entry.resources[0], document)
    assert document == before
    if not response["allowed"]:
        assert once == document
        assert response["status"]["message"]
        return
    assert FRACTION not in json.dumps(once)
    twice, again = rewritten(entry.resources[0], once)
    assert again["allowed"]
    assert "patch" not in again
    assert twice == once


def asking(count: int) -> Object:
    """Builds a pod with `count` containers that ask for 0.005 of a GPU each."""
    made = [{"name": f"c{at}", "image": "none", "resources": {"limits": {FRACTION: "0.005"}}} for at in range(count)]
    return {"metadata": {"name": "train", "namespace": "team"}, "spec": {"containers": made}}


@pytest.mark.parametrize("first", ["the injector", "ours"])
def test_what_another_injector_adds_keeps_what_it_has(first: str) -> None:
    """A service mesh adds a sidecar, a container, volumes and labels, before our first call or between two calls."""

    def inject(document: Object) -> Object:
        made = copy.deepcopy(document)
        sidecar = {"name": "proxy", "image": "mesh", "restartPolicy": "Always", "resources": {"limits": {"cpu": "2"}}}
        made["metadata"].setdefault("labels", {})["mesh"] = "on"
        made["spec"]["initContainers"] = [sidecar, *made["spec"].get("initContainers", [])]
        made["spec"]["containers"].append(
            {"name": "agent", "image": "mesh", "volumeMounts": [{"name": "certificates"}]}
        )
        made["spec"]["volumes"] = [*made["spec"].get("volumes", []), {"name": "certificates", "emptyDir": {}}]
        return made

    pods = ("", "pods")
    document = inject(asking(2)) if first == "the injector" else inject(rewritten(pods, asking(2))[0])
    stored, response = rewritten(pods, document)
    assert response["allowed"]
    (sidecar,) = stored["spec"]["initContainers"]
    assert sidecar["resources"] == {"limits": {"cpu": "2"}}
    shares = [each["resources"]["limits"][MILLI] for each in stored["spec"]["containers"][:2]]
    assert shares == ["5", "5"]
    assert stored["spec"]["containers"][2]["volumeMounts"][0] == {"name": "certificates"}
    assert MILLI not in json.dumps(stored["spec"]["containers"][2])
    assert stored["metadata"]["labels"]["mesh"] == "on"
    assert rewritten(pods, stored)[0] == stored


def test_a_review_of_three_mebibytes_is_answered_with_what_changes() -> None:
    """An API server accepts objects of this size. It sends an updated object twice: the old and the new state."""
    document = asking(2)
    text = "x" * (3 << 20)
    document["spec"]["containers"][0]["args"] = [text]
    sent = json.dumps(review(("", "pods"), document)).encode()
    response = answer(body.parse(sent))["response"]
    patch = base64.b64decode(response["patch"])
    assert response["allowed"] and len(patch) < 10_000
    stored = applied(document, json.loads(patch))
    assert stored["spec"]["containers"][0]["args"] == [text]
    assert [each["resources"]["limits"][MILLI] for each in stored["spec"]["containers"]] == ["5", "5"]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
@pytest.mark.parametrize("document", [{}, {"spec": None, "metadata": None, "template": None}])
def test_malformed_objects_are_left_to_the_api_servers_own_validation(entry: Any, document: Object) -> None:
    for operation in entry.operations:
        old, response = rewritten(entry.resources[0], document, operation=operation, oldObject=document)
        assert response == {"uid": "u", "allowed": True}
        assert old == document


def test_a_malformed_last_applied_annotation_changes_nothing() -> None:
    old = {"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": f'["{FRACTION}"'}}}
    _, response = rewritten(("apps", "deployments"), {"spec": {}}, operation="UPDATE", oldObject=old)
    assert response == {"uid": "u", "allowed": True}


@pytest.mark.parametrize(
    "body", [{}, [], {"request": None}, {"request": {}}, review(("apps", "scales"), {}), review(("", "secrets"), {})]
)
def test_what_no_rule_of_ours_sends_is_an_error(body: Any) -> None:
    with pytest.raises(ReviewError):
        answer(body)
