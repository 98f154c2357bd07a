"""Tests of pods with a share on real API servers: stored pods, messages of refusals, and later changes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.chart import Object
from support.webhook import AS_OPERATOR, LIFT, Space, converted, other_annotations, pod

from remotegpu.api.kubernetes import CLIENT, FRACTION, GATE, MILLI, POD_DIRECTORY, POD_LABEL, SESSION_ANNOTATION
from remotegpu.api.pods import Container

KNOWN = (
    "remotegpu.io/claim, remotegpu.io/pool, remotegpu.io/model, remotegpu.io/memory, remotegpu.io/count, "
    "remotegpu.io/compute, remotegpu.io/compute-limit, remotegpu.io/spread, remotegpu.io/suspendable, "
    "remotegpu.io/movable, remotegpu.io/offload"
)
MOUNT = {"name": "remotegpu", "mountPath": POD_DIRECTORY, "readOnly": True}


def container(name: str, amounts: dict[str, Any] | None = None, **more: Any) -> Object:
    return {"name": name, "image": "none", "resources": {"limits": amounts or {}}, **more}


def test_a_pod_with_a_share(space: Space) -> None:
    (stored,) = space.create(pod("train", {FRACTION: "0.25", "cpu": "1"}))
    assert stored["metadata"]["labels"] == {POD_LABEL: "true"}
    assert (converted(stored), other_annotations(stored)) == ({"app": "250"}, {})
    assert stored["spec"]["schedulingGates"] == [{"name": GATE}]
    (app,) = stored["spec"]["containers"]
    assert app["resources"] == {
        "limits": {"cpu": "1", MILLI: "250"},
        "requests": {"cpu": "1", MILLI: "250"},
    }
    assert app["volumeMounts"] == [MOUNT]
    token = {
        "serviceAccountToken": {"audience": "remotegpu.io/pools/default", "expirationSeconds": 3600, "path": "token"}
    }
    field = {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{SESSION_ANNOTATION}']"}
    session = {"downwardAPI": {"items": [{"path": "session", "fieldRef": field}]}}
    assert stored["spec"]["volumes"] == [
        {"name": "remotegpu", "projected": {"defaultMode": 0o444, "sources": [token, session]}}
    ]


def test_several_containers_init_containers_and_native_sidecars(space: Space) -> None:
    document = pod("many")
    document["spec"]["initContainers"] = [
        container("sidecar", {FRACTION: "0.2"}, restartPolicy="Always"),
        container("prepare", {FRACTION: "0.8"}),
    ]
    document["spec"]["containers"] = [
        container("train", {FRACTION: "0.5"}),
        container("look", {MILLI: 250}),
        container("plain"),
    ]
    (stored,) = space.create(document)
    spec = stored["spec"]
    shares = {c["name"]: Container.of(c).limits.get(MILLI) for c in spec["initContainers"] + spec["containers"]}
    assert shares == {"sidecar": "200", "prepare": "800", "train": "500", "look": "250", "plain": None}
    mounted = {c["name"] for c in spec["initContainers"] + spec["containers"] if MOUNT in c.get("volumeMounts", ())}
    assert mounted == {"sidecar", "prepare", "train", "look"}


@pytest.mark.parametrize(
    ("amounts", "annotations", "milli"),
    [
        ({FRACTION: 2}, {}, "2k"),
        ({FRACTION: 1}, {}, "1k"),
        ({FRACTION: 0.25}, {"remotegpu.io/count": "3"}, "750"),
        ({FRACTION: 1}, {"remotegpu.io/count": "2", "remotegpu.io/spread": "true"}, "2k"),
        ({FRACTION: "250e-3", MILLI: 999}, {"remotegpu.io/pool": "big", "remotegpu.io/model": "A100"}, "250"),
        # Kubernetes itself rounds up to thousandths before it calls a webhook.
        ({FRACTION: 0.0001}, {}, "1"),
    ],
)
def test_amounts(space: Space, amounts: dict[str, Any], annotations: dict[str, str], milli: str) -> None:
    (stored,) = space.create(pod("p", amounts, annotations=annotations))
    (app,) = stored["spec"]["containers"]
    assert Container.of(app).limits == Container.of(app).requests == {MILLI: milli}
    assert other_annotations(stored) == annotations
    assert converted(stored) == ({"app": milli} if FRACTION in amounts else {})


def test_gates_and_volumes_of_others_stay(space: Space) -> None:
    document = pod("p", {FRACTION: 0.5})
    gate = {"name": "kueue.x-k8s.io/admission"}
    mount, volume = {"name": "data", "mountPath": "/data"}, {"name": "data", "emptyDir": {}}
    document["spec"] |= {"schedulingGates": [gate], "volumes": [volume]}
    document["spec"]["containers"][0]["volumeMounts"] = [mount]
    (stored,) = space.create(document)
    assert stored["spec"]["schedulingGates"] == [gate, {"name": GATE}]
    assert [each["name"] for each in stored["spec"]["volumes"]] == ["data", "remotegpu"]
    assert stored["spec"]["containers"][0]["volumeMounts"] == [mount, MOUNT]


@pytest.mark.parametrize("annotations", [{"remotegpu.io/claim": "mine"}, {"remotegpu.io/memory": "4Gi"}])
def test_pods_whose_share_is_not_counted_in_thousandths(space: Space, annotations: dict[str, str]) -> None:
    document = pod("p", annotations=annotations)
    document["spec"]["initContainers"] = [container("prepare")]
    document["spec"]["containers"].append(container("side"))
    (stored,) = space.create(document)
    assert [Container.of(c).limits for c in stored["spec"]["containers"]] == [{CLIENT: "1"}] * 2
    assert all(c["volumeMounts"] == [MOUNT] for c in stored["spec"]["containers"])
    assert not Container.of(stored["spec"]["initContainers"][0]).limits
    assert stored["spec"]["schedulingGates"] == [{"name": GATE}]

    chosen = pod("chosen", annotations=annotations)
    chosen["spec"]["containers"] += [container("side", {CLIENT: 1})]
    (stored,) = space.create(chosen)
    assert [Container.of(c).limits for c in stored["spec"]["containers"]] == [{}, {CLIENT: "1"}]


REFUSED: dict[str, tuple[Object, str]] = {
    "0": (pod("p", {FRACTION: 0}), "container 'app': remotegpu/fraction: 0 "),
    "-1": (pod("p", {FRACTION: -1}), "container 'app': remotegpu/fraction: -1 "),
    "1.5": (pod("p", {FRACTION: 1.5}), "remotegpu/fraction: 1.5 "),
    "abc": (pod("p", {FRACTION: "abc"}), "quantities must match"),
    "1.5 in thousandths": (pod("p", {MILLI: 1500}), "(app 1.5)"),
    "65": (pod("p", {FRACTION: 65}), "ask for at most 64"),
    "unknown resource": (pod("p", {"remotegpu/fractoin": 1}), "remotegpu/fraction?"),
    "unknown key": (
        pod("p", {FRACTION: 1}, annotations={"remotegpu.io/clam": "x"}),
        f"remotegpu.io/claim?); known are {KNOWN}",
    ),
    "unknown key alone": (pod("p", annotations={"remotegpu.io/frobnicate": "x"}), f"; known are {KNOWN}"),
    "claim and fraction": (
        pod("p", {FRACTION: 0.5}, annotations={"remotegpu.io/claim": "c"}),
        "remotegpu.io/claim and remotegpu/milli: 500 (0.5 GPUs)",
    ),
    "claim and memory": (
        pod("p", annotations={"remotegpu.io/claim": "c", "remotegpu.io/memory": "1Gi"}),
        "remotegpu.io/claim excludes remotegpu.io/memory",
    ),
    "memory and fraction": (
        pod("p", {FRACTION: 0.5}, annotations={"remotegpu.io/memory": "1Gi"}),
        "exclude each other",
    ),
    "memory": (pod("p", annotations={"remotegpu.io/memory": "much"}), "'much'"),
    "little memory": (pod("p", annotations={"remotegpu.io/memory": "1"}), "2Mi to 64Ti"),
    "count": (pod("p", {FRACTION: 0.5}, annotations={"remotegpu.io/count": "none"}), "'none'"),
    "count and whole GPUs": (
        pod("p", {FRACTION: 2}, annotations={"remotegpu.io/count": "2"}),
        "remotegpu/fraction: 2",
    ),
    "uneven count": (pod("p", {MILLI: 100}, annotations={"remotegpu.io/count": "3"}), "cannot be split over 3 GPUs"),
    "spread": (pod("p", {FRACTION: 0.5}, annotations={"remotegpu.io/spread": "wide"}), 'neither "true"'),
    "model": (pod("p", {FRACTION: 0.5}, annotations={"remotegpu.io/model": ""}), "no part of a GPU's name"),
    "pool": (pod("p", {FRACTION: 0.5}, annotations={"remotegpu.io/pool": "My Pool"}), "is no name of an object"),
    "words without an amount": (pod("p", annotations={"remotegpu.io/model": "A100"}), "says nothing about how much"),
    "client alone": (pod("p", {CLIENT: 1}), "says nothing about how much"),
    "nodeName": (
        {**pod("p", {FRACTION: 0.5}), "spec": {**pod("p", {FRACTION: 0.5})["spec"], "nodeName": "a"}},
        "choose the node by spec.nodeSelector, kubernetes.io/hostname: a",
    ),
    "forged session": (
        pod("p", annotations={SESSION_ANNOTATION: "{}"}),
        f"annotation {SESSION_ANNOTATION} is RemoteGPU's",
    ),
    "forged key": (
        pod("p", {FRACTION: 1}, annotations={"status.remotegpu.io/other": ""}),
        "annotation status.remotegpu.io/other is RemoteGPU's own",
    ),
    "forged label": (pod("p", labels={POD_LABEL: "true"}), f"label {POD_LABEL} is RemoteGPU's own"),
    "forged gate": (
        {**pod("p"), "spec": {**pod("p")["spec"], "schedulingGates": [{"name": GATE}]}},
        f"scheduling gate {GATE} is RemoteGPU's own",
    ),
    "another volume": (
        {**pod("p", {FRACTION: 1}), "spec": {**pod("p", {FRACTION: 1})["spec"], "volumes": [{"name": "remotegpu"}]}},
        "volume 'remotegpu'",
    ),
}


def test_refused_in_words_that_help(space: Space) -> None:
    """One test checks all refusals, because a fixture for each would take longer than the call."""
    answers = {case: space.refused(document) for case, (document, _) in REFUSED.items()}
    wrong = {case: answers[case] for case, (_, words) in REFUSED.items() if words not in answers[case]}
    assert not wrong
    assert not json.loads(space.kubectl("get", "pods", "-o", "json"))["items"]


def test_a_pod_of_a_hundred_containers(space: Space) -> None:
    document = pod("many")
    document["spec"]["containers"] = [container(f"c{at}", {FRACTION: "0.005"}) for at in range(100)]
    (stored,) = space.create(document)
    assert [each["resources"]["limits"] for each in stored["spec"]["containers"]] == [{MILLI: "5"}] * 100
    assert all(MOUNT in each["volumeMounts"] for each in stored["spec"]["containers"])
    assert stored["spec"]["schedulingGates"] == [{"name": GATE}]


def test_requests_and_limits(space: Space) -> None:
    for request, limit, words in (
        ({FRACTION: 0.25}, {}, "container 'app': remotegpu/fraction "),
        ({FRACTION: 0.25}, {FRACTION: 0.5}, "0.25 in requests and 0.5 in limits"),
        ({MILLI: 250}, {MILLI: 500}, "must be equal to remotegpu/milli limit of 500"),
        ({MILLI: 250}, {}, "Limit must be set for non overcommitable resources"),
    ):
        document = pod("p")
        document["spec"]["containers"][0]["resources"] = {"requests": request, "limits": limit}
        assert words in space.refused(document)
    document["spec"]["containers"][0]["resources"] = {"requests": {FRACTION: "0.5"}, "limits": {FRACTION: "500m"}}
    assert Container.of(space.create(document)[0]["spec"]["containers"][0]).limits == {MILLI: "500"}


def test_shares_that_do_not_add_up(space: Space) -> None:
    document = pod("p", {FRACTION: 0.25})
    document["spec"]["containers"].append(container("side", {FRACTION: 0.9}))
    assert "the containers ask for 1.15 GPUs together (app 0.25, side 0.9)" in space.refused(document)


def test_a_default_of_a_limit_range(space: Space) -> None:
    """The default reaches the webhook as thousandths next to the fraction. The fraction of the pod's author wins."""
    limit_range = {"type": "Container", "default": {MILLI: "100"}, "defaultRequest": {MILLI: "100"}}
    space.create(
        {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "share"}, "spec": {"limits": [limit_range]}}
    )
    for name, amounts, expected in (
        ("none", {}, {MILLI: "100"}),
        ("fraction", {FRACTION: 0.5}, {MILLI: "500"}),
        ("by-hand", {MILLI: 20}, {MILLI: "20"}),
    ):
        (stored,) = space.create(pod(name, amounts))
        (app,) = stored["spec"]["containers"]
        assert Container.of(app).limits == Container.of(app).requests == expected
        assert stored["spec"]["schedulingGates"] == [{"name": GATE}]
    (plain,) = space.create(pod("opted-out", {MILLI: 0}))
    assert "schedulingGates" not in plain["spec"]
    assert POD_LABEL not in plain["metadata"].get("labels", {})
    assert "gets no default of a LimitRange" in space.refused(pod("claim", annotations={"remotegpu.io/claim": "c"}))
    space.create(pod("claim", {MILLI: 0}, annotations={"remotegpu.io/claim": "c"}))


def test_dry_run_leaves_nothing(space: Space) -> None:
    assert "created" in space.answer(pod("p", {FRACTION: 0.5}))
    assert not json.loads(space.kubectl("get", "pods", "-o", "json"))["items"]


def test_applied_again_pods_do_not_change(space: Space) -> None:
    """The manifest has the fraction again, but the resources of a stored pod are immutable."""
    for server_side in (False, True):
        document = pod(f"p-{server_side}".lower(), {FRACTION: 0.5})
        (first,) = space.apply(document, server_side=server_side)
        (second,) = space.apply(document, server_side=server_side)
        assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]
        assert space.diff(document, server_side=server_side) == 0
        # The same for a running pod, whose spec has a node's name. A user may not set it on creation.
        bind = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": document["metadata"]["name"]}}
        space.kubectl("patch", "pod", document["metadata"]["name"], "--type=json", "-p", LIFT)
        path = f"/api/v1/namespaces/{space.name}/pods/{document['metadata']['name']}/binding"
        target = {"apiVersion": "v1", "kind": "Node", "name": "a"}
        space.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps({**bind, "target": target}))
        space.apply(document, server_side=server_side)
        document["spec"]["containers"][0]["resources"]["limits"][FRACTION] = 0.75
        assert "pod updates may not change" in space.refusal("apply", "-f", "-", stdin=json.dumps(document))


def test_a_copied_pod_gets_a_share_of_its_own(space: Space) -> None:
    space.create(pod("first", {FRACTION: 0.5}))
    space.kubectl("annotate", "pod", "first", f"{SESSION_ANNOTATION}=its", *AS_OPERATOR)
    copy = space.get("pod", "first")
    assert other_annotations(copy) == {SESSION_ANNOTATION: "its"}
    kept = {key: copy["metadata"][key] for key in ("annotations", "labels")}
    copy["metadata"] = {**kept, "name": "second"}
    (stored,) = space.create(copy)
    assert SESSION_ANNOTATION not in stored["metadata"].get("annotations", {})
    assert stored["spec"]["volumes"] == copy["spec"]["volumes"]
    assert stored["spec"]["containers"] == copy["spec"]["containers"]


def test_a_pods_token_is_for_the_pool_where_it_is_known(space: Space) -> None:
    """The same for a manifest that was copied from a pod of another pool or of the previous release."""

    def audience(stored: dict[str, Any]) -> str:
        (volume,) = stored["spec"]["volumes"]
        return str(volume["projected"]["sources"][0]["serviceAccountToken"]["audience"])

    (first,) = space.create(pod("first", {FRACTION: 0.5}))
    assert audience(first) == "remotegpu.io/pools/default"
    (named,) = space.create(pod("named", {CLIENT: 1}, annotations={"remotegpu.io/claim": "c"}))
    assert audience(named) == "remotegpu.io", "the claim may be in any pool"
    for name, before in (("moved", "remotegpu.io/pools/default"), ("old", "remotegpu.io")):
        copy = space.get("pod", "first")
        copy["metadata"] = {"name": name, "annotations": {"remotegpu.io/pool": "other"}}
        copy["spec"]["volumes"][0]["projected"]["sources"][0]["serviceAccountToken"]["audience"] = before
        (stored,) = space.create(copy)
        assert audience(stored) == "remotegpu.io/pools/other"
    copy["metadata"]["name"] = "forged"
    copy["spec"]["volumes"][0]["projected"]["sources"][0]["serviceAccountToken"]["audience"] = "https://kubernetes"
    assert "volume 'remotegpu'" in space.refusal("create", "-f", "-", stdin=json.dumps(copy))


def test_only_the_operator_writes_what_is_ours(space: Space) -> None:
    space.create(pod("p", {FRACTION: 0.5}), pod("plain"))
    ours, plain = ("pod", "p"), ("pod", "plain")
    ours_only = "are written by RemoteGPU's operator only"
    assert ours_only in space.refusal("annotate", *ours, f"{SESSION_ANNOTATION}=mine")
    assert ours_only in space.refusal("annotate", *plain, f"{SESSION_ANNOTATION}=mine")
    body = json.dumps({"metadata": {"annotations": {SESSION_ANNOTATION: "mine"}}})
    assert ours_only in space.refusal("patch", *ours, "--subresource=status", "-p", body)
    assert "do not change" in space.refusal("label", *ours, f"{POD_LABEL}-")
    assert "do not change" in space.refusal("label", *plain, f"{POD_LABEL}=true")

    session = {"op": "add", "path": "/metadata/annotations", "value": {SESSION_ANNOTATION: "theirs"}}
    lift = json.dumps([session, *json.loads(LIFT)])
    space.kubectl("patch", *ours, "--type=json", "-p", lift, *AS_OPERATOR)
    assert ours_only in space.refusal("annotate", *ours, f"{SESSION_ANNOTATION}-")
    # All other changes are allowed, as without remotegpu.
    space.kubectl("label", *ours, "colour=blue")
    space.kubectl("annotate", *ours, "colour=blue")
    debug = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "none"}]}}
    space.kubectl("patch", *ours, "--subresource=ephemeralcontainers", "-p", json.dumps(debug))
    space.kubectl("patch", *ours, "--subresource=status", "-p", '{"status": {"phase": "Succeeded"}}')
    space.kubectl("delete", *ours, "--now")


def test_mirror_pods_are_the_kubelets_alone(space: Space) -> None:
    """With the annotation of a mirror pod, other users still cannot bypass the webhook and the policy."""
    document = pod("mirror", {MILLI: 5}, annotations={"kubernetes.io/config.mirror": "x"})
    del document["spec"]["serviceAccountName"]
    document["spec"]["nodeName"] = "a"
    assert "spec.nodeName is set" in space.refused(document)
    # The user is in the group of nodes, but has no node's name: another admission plugin limits real nodes.
    as_node = ("--as=kubelet", "--as-group=system:nodes", "--as-group=system:masters")
    space.kubectl("create", "-f", "-", *as_node, stdin=json.dumps(document))
    assert space.get("pod", "mirror")["spec"]["containers"][0]["resources"]["limits"] == {MILLI: "5"}
