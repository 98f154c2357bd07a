"""Tests that defaults of a LimitRange and of other webhooks never change an author's request, in any order."""

from __future__ import annotations

import base64
import copy
import datetime
import json
from collections.abc import Callable
from typing import Any

import pytest
from support.kubectl import as_list
from support.limit_ranges import BOUNDS_OF_FRACTIONS, LIMIT_RANGES, ROWS, Row, complete, filled
from support.patches import applied
from support.webhook import Space

from remotegpu.api.kubernetes import FRACTION, MILLI
from remotegpu_operator.webhook.mutate import answer

Object = dict[str, Any]
Change = Callable[[Object], Object]
MARK = "webhook.remotegpu.io/converted"
POD, DEPLOYMENT = ("spec",), ("spec", "template", "spec")
T1, T2, T3 = (f"2026-01-01T00:00:0{second}Z" for second in (1, 2, 3))


def unchanged(spec: Object) -> Object:
    return spec


def spec_at(document: Object, path: tuple[str, ...]) -> Any:
    for key in path:
        document = document[key]
    return document


def with_spec(document: Object, path: tuple[str, ...], spec: Object) -> Object:
    if not path:
        return spec
    return {**document, path[0]: with_spec(document.get(path[0], {}), path[1:], spec)}


def record(manager: str, time: str, path: tuple[str, ...], spec: Object, operation: str = "Update") -> Object:
    """Builds an entry of managedFields: the API server's record of the fields that `manager` has sent."""
    fields: Object = {}
    limits: Object
    for kind in ("containers", "initContainers"):
        for each in spec.get(kind, ()):
            limits = {f"f:{name}": {} for name in each.get("resources", {}).get("limits", {})}
            key = f'k:{{"name":"{each["name"]}"}}'
            fields.setdefault(f"f:{kind}", {})[key] = {".": {}, "f:name": {}, "f:resources": {"f:limits": limits}}
    for key in reversed(path):
        fields = {f"f:{key}": fields}
    return {"manager": manager, "operation": operation, "time": time, "fieldsV1": fields}


class Cluster:
    """A simulated API server's admission: defaults of a LimitRange, another webhook and ours, in two passes."""

    def __init__(
        self, path: tuple[str, ...] = POD, before: Change = unchanged, between: Change = unchanged, passes: int = 2
    ) -> None:
        """`before` changes a pod spec before the first call of our webhook, and `between` between two calls."""
        self.path, self.before, self.between, self.passes = path, before, between, passes

    def create(self, document: Object, *, manager: str = "kubectl-create", time: str = T1) -> Object:
        records = [*document["metadata"].get("managedFields", ()), self._record(document, manager, time)]
        return self._admit(self._as_decoded(document), {}, manager, records)

    def update(self, document: Object, old: Object, *, manager: str, time: str, wrote: Object | None = None) -> Object:
        """Updates an object to `document`. `wrote` is the pod spec in the author's manifest if one was applied."""
        records = [each for each in old["metadata"]["managedFields"] if wrote is None or each["manager"] != manager]
        records.append(record(manager, time, self.path, wrote or {}))
        return self._admit(self._as_decoded(document), old, manager, records)

    def _record(self, document: Object, manager: str, time: str) -> Object:
        return record(manager, time, self.path, spec_at(document, self.path))

    def _as_decoded(self, document: Object) -> Object:
        """Returns the document with a request for each limit, as the API server decodes it."""
        spec = copy.deepcopy(spec_at(document, self.path))
        for each in (*spec["containers"], *spec.get("initContainers", ())):
            if limits := each.get("resources", {}).get("limits"):
                each["resources"]["requests"] = {**limits, **each["resources"].get("requests", {})}
        return with_spec(document, self.path, spec)

    def _admit(self, document: Object, old: Object, manager: str, records: list[Object]) -> Object:
        document = {**document, "metadata": {**document["metadata"], "managedFields": records}}
        kind = {POD: ("", "pods"), DEPLOYMENT: ("apps", "deployments")}[self.path]
        for number in range(self.passes):
            change = self.between if number else self.before
            document = with_spec(document, self.path, change(spec_at(document, self.path)))
            resource = {"group": kind[0], "version": "v1", "resource": kind[1]}
            request = {"uid": f"call {number}", "resource": resource, "object": document, "oldObject": old or None}
            request |= {"operation": "UPDATE" if old else "CREATE", "options": {"fieldManager": manager}}
            response = answer({"request": request})["response"]
            assert response["allowed"], response
            patch = json.loads(base64.b64decode(response.get("patch", "W10=")))
            document = applied(document, patch)
        version = int(old["metadata"]["resourceVersion"]) + 1 if old else 7
        return {**document, "metadata": {**document["metadata"], "resourceVersion": str(version)}}


def pod(spec: Object, **metadata: Any) -> Object:
    return {"metadata": {"name": "p", **metadata}, "spec": spec}


def deployment(spec: Object, **metadata: Any) -> Object:
    return {"metadata": {"name": "d", **metadata}, "spec": {"template": {"metadata": {}, "spec": spec}}}


def one(**limits: str) -> Object:
    names = {"fraction": FRACTION, "milli": MILLI}
    return {
        "containers": [
            {"name": "app", "image": "none", "resources": {"limits": {names[k]: v for k, v in limits.items()}}}
        ]
    }


def thousandths(document: Object, path: tuple[str, ...] = POD) -> dict[str, int]:
    """Returns the thousandths in limits by container. Checks that requests are equal, and that no fraction is left."""
    found = {}
    spec = spec_at(document, path)
    for each in (*spec["containers"], *spec.get("initContainers", ())):
        limits, requests = (each.get("resources", {}).get(kind, {}) for kind in ("limits", "requests"))
        assert FRACTION not in {**limits, **requests}
        assert limits.get(MILLI) == requests.get(MILLI)
        found[each["name"]] = int(limits.get(MILLI, "0"))
    return found


def adds(**limits: str) -> Change:
    """Returns a policy like Kyverno's, which adds missing resources to containers."""
    names = {"fraction": FRACTION, "milli": MILLI}
    default = {names[key]: value for key, value in limits.items()}
    return lambda spec: filled(spec, {"default": default, "defaultRequest": default})


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("limit_range", LIMIT_RANGES)
def test_defaults_of_a_limit_range(row: Row, limit_range: str) -> None:
    def fill(spec: Object) -> Object:
        return filled(spec, complete(LIMIT_RANGES[limit_range]))

    for passes in (1, 2, 3):
        made = Cluster(before=fill, between=fill, passes=passes).create(pod(row.spec()))
        assert thousandths(made) == row.expected(limit_range)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("path", [POD, DEPLOYMENT], ids=["pod", "deployment"])
@pytest.mark.parametrize(
    "between", [{"fraction": "0.1"}, {"milli": "100"}, {"fraction": "0.1", "milli": "100"}], ids=str
)
@pytest.mark.parametrize("before", [{}, {"fraction": "0.1"}, {"milli": "100"}], ids=str)
def test_defaults_of_another_webhook(
    row: Row, path: tuple[str, ...], before: dict[str, str], between: dict[str, str]
) -> None:
    make = pod if path == POD else deployment
    made = thousandths(Cluster(path, adds(**before), adds(**between)).create(make(row.spec())), path)
    assert made == {name: 100 if milli is None else milli for name, milli in row.has.items()}


KYVERNO = adds(fraction="0.1")


def test_a_template_that_is_applied_again_and_changed() -> None:
    cluster = Cluster(DEPLOYMENT, between=KYVERNO)
    stored = cluster.create(deployment(one(fraction="0.25")), manager="kubectl")
    assert thousandths(stored, DEPLOYMENT) == {"app": 250}

    def written(spec: Object, old: Object) -> Object:
        """Merges a manifest as an apply does: fields that are not in the manifest stay."""
        both = {**one(milli=str(thousandths(old, DEPLOYMENT)["app"]))["containers"][0]["resources"]["limits"]}
        both |= spec["containers"][0]["resources"]["limits"]
        merged = {
            "containers": [{"name": "app", "image": "none", "resources": {"limits": both, "requests": dict(both)}}]
        }
        return with_spec(old, DEPLOYMENT, merged)

    # An apply of the same manifest stores nothing.
    again = cluster.update(
        written(one(fraction="0.25"), stored), stored, manager="kubectl", time=T2, wrote=one(fraction="0.25")
    )
    version = {**stored["metadata"], "resourceVersion": "8"}
    assert again == {**stored, "metadata": version}
    # An apply with another fraction changes the thousandths.
    more = cluster.update(
        written(one(fraction="0.5"), stored), stored, manager="kubectl", time=T2, wrote=one(fraction="0.5")
    )
    assert thousandths(more, DEPLOYMENT) == {"app": 500}
    # The policy also adds its default to an update by another manager, and the thousandths stay.
    for change in (Cluster(DEPLOYMENT, KYVERNO, KYVERNO), cluster):
        scaled = change.update(more, more, manager="kubectl-scale", time=T3)
        assert thousandths(scaled, DEPLOYMENT) == {"app": 500}


@pytest.mark.parametrize("manager", ["flux", ""])
def test_two_applies_within_a_second(manager: str) -> None:
    """The second apply does not change the records, because their times are whole seconds."""
    cluster = Cluster(DEPLOYMENT)
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    stored = cluster.create(deployment(one(fraction="0.25")), manager="flux", time=now)
    both = one(fraction="0.5", milli="250")
    sent = with_spec(stored, DEPLOYMENT, both)
    record_of_it = stored["metadata"]["managedFields"]
    more = cluster._admit(cluster._as_decoded(sent), stored, manager, record_of_it)
    assert thousandths(more, DEPLOYMENT) == {"app": 500}
    # An update by another manager within the second sent no fraction itself: the policy added its default.
    other = Cluster(DEPLOYMENT, KYVERNO, KYVERNO).update(stored, stored, manager="kube-controller-manager", time=now)
    assert thousandths(other, DEPLOYMENT) == {"app": 250}


def test_a_pod_that_is_applied_again_or_changed_by_others() -> None:
    for cluster in (Cluster(), Cluster(between=KYVERNO), Cluster(before=KYVERNO, between=KYVERNO)):
        stored = cluster.create(pod(one(fraction="0.25")), manager="kubectl")
        labelled = {**stored, "metadata": {**stored["metadata"], "labels": {"a": "b"}}}
        other = cluster.update(labelled, stored, manager="kubectl-label", time=T2)
        assert thousandths(other) == {"app": 250}
        both = {FRACTION: "0.25", MILLI: "250"}
        first = {**stored["spec"]["containers"][0], "resources": {"limits": both, "requests": dict(both)}}
        for changed in (stored, labelled):
            sent = {**changed, "spec": {**stored["spec"], "containers": [first]}}
            again = cluster.update(sent, stored, manager="kubectl", time=T2, wrote=one(fraction="0.25"))
            assert thousandths(again) == {"app": 250}


# Tests of forged marks: they must have no effect that is impossible with a manifest without a mark.


def forged(**milli: str) -> dict[str, str]:
    return {MARK: json.dumps({"request": "of 7", "milli": milli})}


@pytest.mark.parametrize(
    "mark",
    [
        *(forged(app=milli) for milli in ("1", "250", "500", "64000")),
        {MARK: ""},
        {MARK: "null"},
        {MARK: "[]"},
        {MARK: '{"request": ""}'},
        {MARK: '{"request": "", "milli": {"app": "1"}}'},
        {MARK: '{"request": {}, "milli": 5}'},
        {MARK: "{" * 5000},
    ],
)
@pytest.mark.parametrize(("limits", "has"), [({"fraction": "0.5"}, 500), ({"fraction": "0.5", "milli": "250"}, 500)])
def test_a_forged_mark_is_none(mark: dict[str, str], limits: dict[str, str], has: int) -> None:
    cluster = Cluster(between=KYVERNO)
    made = cluster.create(pod(one(**limits), annotations=mark))
    assert thousandths(made) == {"app": has}
    assert made["metadata"]["annotations"][MARK] != mark[MARK]


def test_a_mark_of_the_right_request_says_no_more_than_thousandths_do() -> None:
    """A mark with the right request, for which an attacker must guess the request's second, has no effect either.

    The thousandths in the manifest are used.
    """
    document = pod(one(fraction="0.5", milli="250"))
    true = json.loads(Cluster().create(document)["metadata"]["annotations"][MARK])
    for milli in ("1", "250", "500"):
        mark = {MARK: json.dumps({**true, "milli": {"app": milli}})}
        made = Cluster(between=KYVERNO).create(pod(one(fraction="0.5", milli="250"), annotations=mark))
        assert thousandths(made) == thousandths(Cluster().create(pod(one(milli="250"))))
    # Containers in the mark that the pod does not have are ignored.
    mark = {MARK: json.dumps({**true, "milli": {"other": "9"}})}
    made = Cluster(between=KYVERNO).create(pod(one(fraction="0.5"), annotations=mark))
    assert thousandths(made) == {"app": 500}


def test_a_mark_gives_no_share_to_a_pod_that_asks_for_none() -> None:
    made = Cluster().create(pod({"containers": [{"name": "app"}]}, annotations=forged(app="250")))
    assert made["spec"] == {"containers": [{"name": "app"}]}


@pytest.mark.parametrize("with_records", [False, True])
@pytest.mark.parametrize("limit_range", ["default of fraction", "default of milli", "default of both"])
def test_a_manifest_that_was_copied_from_a_live_pod(with_records: bool, limit_range: str) -> None:
    def fill(spec: Object) -> Object:
        return filled(spec, complete(LIMIT_RANGES[limit_range]))

    cluster = Cluster(before=fill, between=fill)
    live = cluster.create(pod(one(fraction="0.25")))

    def copied(**more: str) -> Object:
        made: Object = copy.deepcopy(live)
        del made["metadata"]["resourceVersion"]
        if not with_records:
            del made["metadata"]["managedFields"]
        for kind, amounts in made["spec"]["containers"][0]["resources"].items():
            made["spec"]["containers"][0]["resources"][kind] = {**amounts, **more}
        return made

    assert thousandths(cluster.create(copied(), time=T2)) == {"app": 250}
    # A copy with a changed fraction gets the new amount.
    changed = cluster.create(copied(**{FRACTION: "0.5"}), time=T2)
    assert thousandths(changed) == {"app": 500}
    # The copy is the template of a Deployment, whose controller creates the pods.
    template = Cluster(DEPLOYMENT).create(
        {
            "metadata": {"name": "d"},
            "spec": {"template": {key: copied(**{FRACTION: "0.5"})[key] for key in ("metadata", "spec")}},
        },
        time=T2,
    )
    assert thousandths(template, DEPLOYMENT) == {"app": 500}
    made = {key: template["spec"]["template"][key] for key in ("metadata", "spec")}
    made["metadata"] = {key: value for key, value in made["metadata"].items() if key != "managedFields"}
    assert thousandths(cluster.create(made, manager="kube-controller-manager", time=T3)) == {"app": 500}


def test_the_same_answers_without_records() -> None:
    """Without `managedFields`, which every API server writes, only the mark decides."""
    request = {"uid": "u", "operation": "CREATE", "resource": {"group": "", "version": "v1", "resource": "pods"}}
    document = pod(one(fraction="0.25"))
    for change in (unchanged, KYVERNO, adds(milli="100"), KYVERNO):
        document = {**document, "spec": {**document["spec"], **change({"containers": document["spec"]["containers"]})}}
        response = answer({"request": {**request, "object": document}})["response"]
        document = applied(document, json.loads(base64.b64decode(response.get("patch", "W10="))))
        assert thousandths(document) == {"app": 250}


# Tests with real API servers.


def limited(space: Space, limit_range: Object) -> None:
    limits = {"type": "Container", **limit_range}
    metadata = {"name": "share"}
    space.create({"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": {"limits": [limits]}})


def pod_of(name: str, spec: Object) -> Object:
    """Builds a pod with a service account, because no controller adds one in these tests."""
    metadata = {"name": name}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**spec, "serviceAccountName": "default"}}


def in_template(deployment: Object) -> dict[str, int]:
    """Returns the thousandths in a Deployment's template. Adds requests, as the API server does only for pods."""
    filled_in: Object = {"default": {}, "defaultRequest": {}}
    spec = filled(spec_at(deployment, DEPLOYMENT), filled_in)
    for each in (*spec["containers"], *spec.get("initContainers", ())):
        each["resources"]["requests"] = {**each["resources"]["limits"], **each["resources"]["requests"]}
    return thousandths(pod(spec))


def templates(space: Space, rows: dict[str, Row]) -> dict[str, Object]:
    """Creates a Deployment for each row, and returns the stored Deployments. No controller creates their pods."""
    labels = {"app": "a"}
    documents = [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": f"d{number}"},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": row.spec()},
            },
        }
        for number, row in enumerate(rows.values())
    ]
    return dict(zip(rows, space.create(*documents), strict=True))


@pytest.mark.parametrize("limit_range", LIMIT_RANGES)
def test_the_table_by_an_api_server(space: Space, limit_range: str) -> None:
    limited(space, LIMIT_RANGES[limit_range])
    # Kubernetes itself refuses amounts below the LimitRange's minimum, such as `remotegpu/milli: 0`.
    least = "min" in LIMIT_RANGES[limit_range]
    rows = {name: row for name, row in ROWS.items() if not least or 0 not in row.has.values()}
    made = space.create(*(pod_of(f"p{number}", row.spec()) for number, row in enumerate(rows.values())))
    found = {name: thousandths(each) for name, each in zip(rows, made, strict=True)}
    assert found == {name: row.expected(limit_range) for name, row in rows.items()}
    stored = templates(space, rows)
    found = {name: in_template(each) for name, each in stored.items()}
    assert found == {name: row.in_a_template() for name, row in rows.items()}
    specs = [each["spec"]["template"]["spec"] for each in stored.values()]
    made = space.create(*(pod_of(f"of-d{number}", spec) for number, spec in enumerate(specs)))
    found = {name: thousandths(each) for name, each in zip(rows, made, strict=True)}
    assert found == {name: row.expected(limit_range) for name, row in rows.items()}


@pytest.mark.parametrize("bounds", BOUNDS_OF_FRACTIONS)
def test_bounds_in_fractions_refuse_every_pod_and_no_template(space: Space, bounds: str) -> None:
    """After the conversion a pod has no fraction to compare with the bounds (docs/waiting.md).

    So the API server or the webhook refuses every pod with a message about it.
    """
    limit_range, sentence = BOUNDS_OF_FRACTIONS[bounds]
    limited(space, limit_range)
    pods = as_list([pod_of(f"p{number}", row.spec()) for number, row in enumerate(ROWS.values())])
    refusals = space.refusal("create", "-f", "-", stdin=pods).splitlines()
    for row, refusal in zip(ROWS.values(), refusals, strict=True):
        # `min` also acts as a default request. Without a limit the webhook refuses the pod.
        by_us = bounds == "min of fraction" and None in row.has.values()
        said = "if a LimitRange put it there, write its bounds in remotegpu/milli" if by_us else sentence
        assert said in refusal
    found = {name: in_template(each) for name, each in templates(space, ROWS).items()}
    assert found == {name: row.in_a_template() for name, row in ROWS.items()}


def test_a_copy_of_a_live_pod_by_an_api_server(space: Space) -> None:
    limited(space, LIMIT_RANGES["default of fraction"])
    kind = {"apiVersion": "v1", "kind": "Pod"}
    account = {"serviceAccountName": "default"}
    space.create({**kind, **pod({**one(fraction="0.25"), **account})})
    for name, more, has in (("same", {}, 250), ("changed", {FRACTION: "0.5"}, 500)):
        copied = space.get("pod", "p")
        copied["metadata"] = {
            "name": name,
            **{key: copied["metadata"][key] for key in ("annotations", "labels")},
        }
        resources = copied["spec"]["containers"][0]["resources"]
        copied["spec"]["containers"][0]["resources"] = {key: {**each, **more} for key, each in resources.items()}
        (made,) = space.create(copied)
        assert thousandths(made) == {"app": has}
