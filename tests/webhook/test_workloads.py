"""Tests of fractions in the eight kinds with a pod template, on real API servers: set, changed and removed."""

from __future__ import annotations

import copy
import json
import time
from typing import Any

import pytest
import yaml
from support.chart import Object
from support.kubectl import as_list
from support.system import ROOT, until
from support.webhook import Space

from remotegpu.api.kubernetes import FRACTION, MILLI
from remotegpu.api.pods import Container

EXAMPLE = ROOT / "examples" / "03-workloads"
KINDS = (
    "CronJob",
    "DaemonSet",
    "Deployment",
    "Job",
    "PodTemplate",
    "ReplicaSet",
    "ReplicationController",
    "StatefulSet",
)
# The kinds whose template may change: the template of a started Job is immutable.
CHANGEABLE = tuple(kind for kind in KINDS if kind != "Job")

sides = pytest.mark.parametrize("server_side", [False, True], ids=["client-side", "server-side"])


def spec_of(document: Object) -> Object:
    """Returns the pod spec of an object of any kind, found by its containers."""
    if "containers" in document:
        return document
    inner = next(document[key] for key in ("spec", "jobTemplate", "template") if key in document)
    return spec_of(inner)


def container_of(document: Object) -> Object:
    (container,) = spec_of(document)["containers"]
    found: Object = container
    return found


def workloads(kinds: tuple[str, ...] = KINDS, **amounts: Any) -> list[Object]:
    """Returns the example's manifests of `kinds`, with these limits if any are given."""
    documents = [yaml.safe_load(file.read_text()) for file in sorted(EXAMPLE.glob("*.yaml"))]
    assert tuple(document["kind"] for document in documents) == KINDS
    for document in documents:
        if amounts:
            container_of(document)["resources"] = {"limits": {NAMES[name]: value for name, value in amounts.items()}}
    return [document for document in documents if document["kind"] in kinds]


NAMES = {"fraction": FRACTION, "milli": MILLI, "cpu": "cpu"}


def shares(documents: list[Object]) -> dict[str, tuple[Object, Object]]:
    found = {d["kind"]: Container.of(container_of(d)) for d in documents}
    return {kind: (one.limits, one.requests) for kind, one in found.items()}


def versions(documents: list[Object]) -> dict[str, tuple[int, str]]:
    return {d["kind"]: (d["metadata"].get("generation"), d["metadata"]["resourceVersion"]) for d in documents}


def all_have(documents: list[Object], **amounts: str) -> None:
    expected = {NAMES[name]: value for name, value in amounts.items()}
    ours = {name: value for name, value in expected.items() if name == MILLI}
    for kind, (limit, request) in shares(documents).items():
        assert limit == expected, kind
        assert request == ours, kind


@sides
def test_the_example_applied_twice_changes_nothing(space: Space, server_side: bool) -> None:
    first = space.apply(*workloads(), server_side=server_side)
    all_have(first, milli="100")
    # Controllers write, too, so the API server has a record that is at least a second younger than the manifest's.
    space.kubectl("label", ",".join(KINDS), "--all", "colour=blue", "--field-manager=controller")
    second = int(time.time())
    until(lambda: time.time() >= second + 1, 5, "the next second")
    labelled = [space.get(kind, kind.lower()) for kind in KINDS]
    assert versions(space.apply(*workloads(), server_side=server_side)) == versions(labelled)
    assert space.diff(*workloads(), server_side=server_side) == 0


@sides
def test_changed_and_taken_back_beside_another_limit(space: Space, server_side: bool) -> None:
    def apply(**amounts: Any) -> list[Object]:
        return space.apply(*workloads(CHANGEABLE, **amounts), server_side=server_side)

    apply(fraction=0.25, cpu="1")
    assert space.diff(*workloads(CHANGEABLE, fraction=0.5, cpu="1"), server_side=server_side) == 1
    all_have(apply(fraction=0.5, cpu="1"), milli="500", cpu="1")
    without = apply(cpu="1")
    all_have(without, cpu="1")
    assert space.diff(*workloads(CHANGEABLE, cpu="1"), server_side=server_side) == 0
    assert versions(apply(cpu="1")) == versions(without)
    all_have(apply(fraction=0.25, cpu="1"), milli="250", cpu="1")


@sides
def test_taken_back_with_all_limits(space: Space, server_side: bool) -> None:
    manifests = workloads(CHANGEABLE, fraction=0.25)
    space.apply(*manifests, server_side=server_side)
    for document in manifests:
        del container_of(document)["resources"]
    all_have(space.apply(*manifests, server_side=server_side))


@sides
def test_the_same_amount_now_written_in_thousandths_by_hand(space: Space, server_side: bool) -> None:
    """The amount stays the same: the pods keep their share, and no rollout starts."""
    before = space.apply(*workloads(CHANGEABLE, fraction=0.25), server_side=server_side)
    after = space.apply(*workloads(CHANGEABLE, milli=250), server_side=server_side)
    assert [spec_of(document) for document in after] == [spec_of(document) for document in before]


@sides
def test_another_amount_now_written_in_thousandths_by_hand(space: Space, server_side: bool) -> None:
    space.apply(*workloads(CHANGEABLE, fraction=0.25, cpu="1"), server_side=server_side)
    all_have(space.apply(*workloads(CHANGEABLE, milli=300, cpu="1"), server_side=server_side), milli="300", cpu="1")


@sides
def test_taken_back_in_one_of_two_containers(space: Space, server_side: bool) -> None:
    (manifest,) = workloads(("Deployment",), fraction=0.25, cpu="1")
    spec = spec_of(manifest)
    spec["initContainers"] = [copy.deepcopy(spec["containers"][0]) | {"name": "prepare"}]
    space.apply(manifest, server_side=server_side)
    without = copy.deepcopy(manifest)
    del spec_of(without)["initContainers"][0]["resources"]["limits"][FRACTION]
    (stored,) = space.apply(without, server_side=server_side)
    assert Container.of(spec_of(stored)["initContainers"][0]).limits == {"cpu": "1"}
    assert Container.of(container_of(stored)).limits == {"cpu": "1", MILLI: "250"}


def test_two_appliers_of_two_containers(space: Space) -> None:
    """One of the appliers removes its fraction. The share of the other applier's container stays."""
    (first,) = workloads(("Deployment",), fraction=0.25, cpu="1")
    second = {key: first[key] for key in ("apiVersion", "kind", "metadata")}
    side = copy.deepcopy(container_of(first)) | {"name": "side"}
    second["spec"] = {"template": {"spec": {"containers": [side]}}}

    def apply(manifest: Object, manager: str) -> list[Object]:
        flags = ["--server-side", f"--field-manager={manager}", "-f", "-"]
        space.kubectl("apply", *flags, stdin=json.dumps(manifest))
        return spec_of(space.get("deployment", "deployment"))["containers"]  # type: ignore[no-any-return]

    apply(first, "one")
    assert [Container.of(c).limits.get(MILLI) for c in apply(second, "two")] == ["250", "250"]
    del container_of(first)["resources"]["limits"][FRACTION]
    assert {c["name"]: Container.of(c).limits.get(MILLI) for c in apply(first, "one")} == {"share": None, "side": "250"}


@pytest.mark.parametrize("created", [False, True], ids=["applied", "created"])
def test_what_others_write_keeps_the_share(space: Space, created: bool) -> None:
    manifest = workloads(("Deployment",), fraction=0.25, cpu="1")
    (space.create if created else space.apply)(*manifest)
    before = space.get("deployment", "deployment")
    for command in (
        ("scale", "deployment/deployment", "--replicas=3"),
        ("label", "deployment/deployment", "colour=blue"),
        ("annotate", "deployment/deployment", "colour=blue"),
        ("set", "image", "deployment/deployment", "share=other"),
        ("set", "env", "deployment/deployment", "COLOUR=blue"),
        ("rollout", "restart", "deployment/deployment"),
        ("rollout", "pause", "deployment/deployment"),
        ("patch", "deployment/deployment", "-p", '{"metadata": {"finalizers": ["example.com/x"]}}'),
    ):
        space.kubectl(*command)
        assert shares([space.get("deployment", "deployment")]) == shares([before]), command
    space.kubectl("set", "resources", "deployment/deployment", f"--limits={FRACTION}=0.5")
    all_have([space.get("deployment", "deployment")], milli="500", cpu="1")
    # `kubectl edit` shows thousandths, and sends only the differences with its own manager.
    for milli in ("750", None):
        amounts = {"limits": {MILLI: milli}, "requests": {MILLI: milli}}
        body = {"spec": {"template": {"spec": {"containers": [{"name": "share", "resources": amounts}]}}}}
        space.kubectl("patch", "deployment/deployment", "--field-manager=kubectl-edit", "-p", json.dumps(body))
        all_have([space.get("deployment", "deployment")], **({"milli": milli} if milli else {}), cpu="1")


def test_replaced(space: Space) -> None:
    manifests = workloads(CHANGEABLE, fraction=0.25)
    space.create(*manifests)
    for document in workloads(CHANGEABLE, fraction=0.5):
        space.kubectl("replace", "-f", "-", stdin=json.dumps(document))
        all_have([space.get(document["kind"], document["metadata"]["name"])], milli="500")
    for document in workloads(CHANGEABLE, cpu="1"):
        space.kubectl("replace", "-f", "-", stdin=json.dumps(document))
        all_have([space.get(document["kind"], document["metadata"]["name"])], cpu="1")


def test_whole_gpus_applied_again(space: Space) -> None:
    """The API server stores 1000 thousandths as "1k"."""
    first = space.apply(*workloads(fraction=1))
    all_have(first, milli="1k")
    assert versions(space.apply(*workloads(fraction=1))) == versions(first)


def test_moved_from_client_side_to_server_side_apply(space: Space) -> None:
    """The fraction causes one conflict, like every field that the server changes. Then it has a new owner."""
    manifests = workloads(CHANGEABLE, fraction=0.25, cpu="1")
    space.apply(*manifests)
    command = ("apply", "--server-side", "-f", "-")
    assert "--force-conflicts" in space.refusal(*command, stdin=as_list(manifests))
    space.kubectl(*command, "--force-conflicts", stdin=as_list(manifests))
    moved = space.apply(*manifests, server_side=True)
    all_have(moved, milli="250", cpu="1")
    assert versions(space.apply(*manifests, server_side=True)) == versions(moved)
    space.apply(*workloads(CHANGEABLE, cpu="1"), server_side=True)
    all_have([space.get(kind, kind.lower()) for kind in CHANGEABLE], cpu="1")


def test_dry_run_leaves_nothing(space: Space) -> None:
    space.kubectl("apply", "--dry-run=server", "-f", str(EXAMPLE))
    assert not json.loads(space.kubectl("get", ",".join(KINDS), "-o", "json"))["items"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c["resources"]["limits"].update({FRACTION: "1.5"}), "container 'share': remotegpu/fraction: 1.5 "),
        (
            lambda c: c["resources"].update(limits={}, requests={FRACTION: "0.1"}),
            "container 'share': remotegpu/fraction ",
        ),
        (lambda c: c["resources"].update(requests={FRACTION: "0.2"}), "0.2 in requests and 0.1 in limits"),
    ],
)
def test_refused_in_the_template_and_not_in_an_event_of_its_controller(space: Space, change: Any, words: str) -> None:
    for document in workloads():
        change(container_of(document))
        assert words in space.refused(document), document["kind"]


def test_a_template_without_containers_gets_the_api_servers_own_sentence(space: Space) -> None:
    (document,) = workloads(("Deployment",))
    del spec_of(document)["containers"]
    assert "spec.template.spec.containers: Required value" in space.refused(document)
