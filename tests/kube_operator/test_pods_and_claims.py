"""Tests of the pure functions that read a pod's request and build a claim's next status, compared as a whole."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from typing import Any

import pytest

from remotegpu.api.claims import Allocation, ClaimStatus, Endpoint, GPUClaim, Phase, PodReference, Reason
from remotegpu.api.pods import PodError
from remotegpu.api.pools import AppliancePhase, ApplianceStatus, GpuStatus
from remotegpu_operator.allocation import Placed, Waiting, request_of
from remotegpu_operator.builders import claims, pods
from remotegpu_operator.builders.quotas import hard_milli

NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:05:00Z"
UID = "11111111-2222-3333-4444-555555555555"
MILLI = "remotegpu/milli"
GIB = 1 << 30


def container(milli: Any = None, **more: Any) -> dict[str, Any]:
    resources = {} if milli is None else {"limits": {MILLI: milli}, "requests": {MILLI: milli}}
    return {"name": "c", "resources": resources, **more}


def pod(*containers: dict[str, Any], init: Any = (), notes: Any = None, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "train",
            "namespace": "team",
            "uid": UID,
            "resourceVersion": "7",
            "annotations": notes,
            "labels": {"app": "train", "remotegpu.io/x": "no", "status.remotegpu.io/pod": "true"},
        },
        "spec": {"containers": list(containers), "initContainers": list(init), **spec},
        "status": {"phase": "Pending"},
    }


def claim_of(asked: dict[str, Any]) -> dict[str, Any]:
    ask = pods.ask_of(asked)
    assert ask.share is not None
    return pods.claim_for(asked, ask, ask.share)


def share(asked: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = claim_of(asked)["spec"]
    return {key: value for key, value in spec.items() if key != "pod"}


def test_the_claim_of_a_pod() -> None:
    asked = pod(container("250"), priority=5)
    assert claim_of(asked) == {
        "apiVersion": "remotegpu.io/v1alpha1",
        "kind": "GPUClaim",
        "metadata": {
            "name": f"train-{UID}",
            "namespace": "team",
            "labels": {"app": "train", "app.kubernetes.io/managed-by": "remotegpu-operator"},
        },
        "spec": {
            "pool": "default",
            "count": 1,
            "fraction": "0.25",
            "priority": 5,
            "pod": {"name": "train", "uid": UID},
        },
    }


def test_a_pod_that_offloads_has_a_claim_of_that_mode() -> None:
    notes = {"remotegpu.io/offload": "rules"}
    assert share(pod(container("250"), notes=notes)) == {
        "pool": "default",
        "count": 1,
        "mode": "offload",
        "fraction": "0.25",
    }


@pytest.mark.parametrize(
    ("mode", "offload", "refusal"),
    [
        ("driver", False, None),
        ("offload", True, None),
        (
            "offload",
            False,
            "the GPUClaim mine has mode offload and the pod no annotation remotegpu.io/offload: add it with the name "
            "of the ConfigMap that says what is offloaded, or name a claim with mode driver",
        ),
        (
            "driver",
            True,
            "the pod has annotation remotegpu.io/offload and the GPUClaim mine mode driver: leave the annotation out, "
            "or name a claim made with mode: offload",
        ),
    ],
)
def test_a_pod_uses_a_claim_of_its_own_mode(mode: str, offload: bool, refusal: str | None) -> None:
    notes = {"remotegpu.io/claim": "mine"} | ({"remotegpu.io/offload": "rules"} if offload else {})
    asked = pod(container(), notes=notes)
    metadata = {"name": "mine", "namespace": "team", "uid": "u"}
    claim = GPUClaim.from_object({"metadata": metadata, "spec": {"fraction": "0.5", "mode": mode}})
    refused = pods.refusal_of_claim(asked, pods.ask_of(asked), claim)
    assert refused == (None if refusal is None else ("ClaimOfOtherMode", refusal))


def test_the_forms_in_which_a_pod_asks() -> None:
    assert share(pod(container("1k"))) == {"pool": "default", "count": 1, "fraction": "1"}
    assert share(pod(container("2k"))) == {"pool": "default", "count": 1, "fraction": "2"}
    # An init container runs before the other containers, a sidecar at the same time as them.
    assert share(pod(container("100"), init=[container("300")]))["fraction"] == "0.3"
    assert share(pod(container("100"), init=[container("300", restartPolicy="Always")]))["fraction"] == "0.4"
    notes = {"remotegpu.io/pool": "big", "remotegpu.io/model": "A100", "remotegpu.io/count": "2"}
    both = {**notes, "remotegpu.io/spread": "true"}
    wanted = {"pool": "big", "model": "A100", "count": 2, "placement": "Spread"}
    assert share(pod(container("500"), notes=both)) == {**wanted, "fraction": "0.25"}
    assert share(pod(container(), notes={**both, "remotegpu.io/memory": "2Gi"})) == {**wanted, "memory": "2Gi"}
    assert pods.ask_of(pod(container(), notes={"remotegpu.io/claim": "mine"})).claim == "mine"


@pytest.mark.parametrize("asked", [pod(container()), pod(container("1500")), pod(container("0"))])
def test_a_gated_pod_that_asks_for_nothing_that_can_be_given(asked: dict[str, Any]) -> None:
    with pytest.raises(PodError):
        pods.ask_of(asked)


def test_gated_and_started_pods() -> None:
    waiting = pod(
        container("1"), schedulingGates=[{"name": "remotegpu.io/claim"}, {"name": "kueue.x-k8s.io/admission"}]
    )
    assert pods.gated(waiting)
    assert not pods.started(waiting)
    assert pods.started({**waiting, "status": {"phase": "Running"}})


def test_the_patch_takes_our_gate_alone_and_only_from_the_version_that_was_seen() -> None:
    waiting = pod(
        container("1"), schedulingGates=[{"name": "remotegpu.io/claim"}, {"name": "kueue.x-k8s.io/admission"}]
    )
    metadata = {"resourceVersion": "7", "annotations": {"status.remotegpu.io/session": "text"}}
    left = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
    assert pods.attachment(waiting, "text") == {"metadata": metadata, "spec": left}
    waiting["spec"]["schedulingGates"] = [{"name": "remotegpu.io/claim"}]
    assert pods.attachment(waiting, "text") == {"metadata": metadata, "spec": {"schedulingGates": None}}
    waiting["spec"]["schedulingGates"] = None
    assert pods.attachment(waiting, "text") == {"metadata": metadata}


def test_the_session_as_the_client_reads_it() -> None:
    endpoints = (
        Endpoint("b", "10.0.0.2:7070", "b.appliance.remotegpu.io"),
        Endpoint("a", "10.0.0.1:7070", "a.appliance.remotegpu.io"),
    )
    assert json.loads(pods.session(CLAIM, endpoints, "PEM")) == {
        "claim": {"namespace": "team", "name": "mine", "uid": UID},
        "ca": "PEM",
        "appliances": [
            {"endpoint": "10.0.0.2:7070", "server_name": "b.appliance.remotegpu.io"},
            {"endpoint": "10.0.0.1:7070", "server_name": "a.appliance.remotegpu.io"},
        ],
    }


def test_quotas_that_say_something_about_claims() -> None:
    assert hard_milli({"spec": {"hard": {"requests.remotegpu/milli": "1500"}}}) == 1500
    assert hard_milli({"spec": {"hard": {"requests.remotegpu/milli": "2k", "pods": "3"}}}) == 2000
    assert hard_milli({"spec": {"hard": {"pods": "3"}}}) is None
    assert hard_milli({"spec": {"hard": {"requests.remotegpu/milli": "1"}, "scopes": ["BestEffort"]}}) is None


CLAIM = GPUClaim.from_object(
    {
        "metadata": {"name": "mine", "namespace": "team", "uid": UID, "generation": 3, "resourceVersion": "9"},
        "spec": {"fraction": "0.25", "pod": {"name": "train", "uid": "u"}},
    }
)
ALLOCATION = Allocation("a", "node-a", "GPU-1", "Model", 2 * GIB, 250)
GPU = GpuStatus("GPU-1", "Model", 8 * GIB, 8 * GIB)
HERE = ApplianceStatus("a", "node-a", AppliancePhase.READY, address="10.0.0.1:7070", gpus=(GPU,))
POD = PodReference("train", "u")


def with_status(status: ClaimStatus) -> GPUClaim:
    return replace(CLAIM, status=status)


def placed() -> ClaimStatus:
    decision = Placed(request_of(CLAIM), (ALLOCATION,))
    return claims.with_consumers(claims.placed(CLAIM, decision, {"a": HERE}, NOW), [POD])


def truth(status: ClaimStatus) -> dict[str, tuple[str, str, str]]:
    return {each.type: (each.status, each.reason, each.last_transition_time) for each in status.conditions}


def test_a_claim_that_got_its_share() -> None:
    status = placed()
    assert (status.phase, status.reason) == (Phase.ALLOCATED, Reason.ALLOCATED)
    assert truth(status) == {"Allocated": ("True", "Allocated", NOW), "Ready": ("True", "Allocated", NOW)}
    assert status.endpoints == (Endpoint("a", "10.0.0.1:7070", "a.appliance.remotegpu.io"),)
    assert (status.consumers, status.observed_generation) == ((POD,), 3)
    assert (status.milli, status.memory) == (250, 2 * GIB)


def test_a_claim_that_waits_says_why() -> None:
    decision = Waiting(request_of(CLAIM), Reason.WAITING_FOR_CAPACITY, "no GPU has that much free")
    status = claims.with_consumers(claims.waiting(CLAIM, decision, NOW), [POD])
    assert (status.phase, status.reason, status.message) == (
        Phase.PENDING,
        Reason.WAITING_FOR_CAPACITY,
        "no GPU has that much free",
    )
    assert truth(status)["Ready"] == ("False", "WaitingForCapacity", NOW)
    assert status.consumers == ()


@pytest.mark.parametrize(
    "away",
    [
        {"a": replace(HERE, phase=AppliancePhase.LOST)},
        {"a": replace(HERE, phase=AppliancePhase.STARTING, gpus=())},
        {"a": replace(HERE, address="")},
    ],
)
def test_a_lost_appliance_and_its_return(away: dict[str, ApplianceStatus]) -> None:
    lost = claims.observed(with_status(placed()), away, LATER)
    assert (lost.phase, lost.reason, lost.allocations) == (Phase.LOST, Reason.APPLIANCE_LOST, (ALLOCATION,))
    assert truth(lost) == {"Allocated": ("True", "Allocated", NOW), "Ready": ("False", "ApplianceLost", LATER)}
    assert claims.observed(with_status(lost), away, LATER) == lost, "nothing is written again and again"
    assert not claims.gone_for_good(with_status(lost), away)
    moved = {"a": replace(HERE, address="10.0.0.9:7070")}
    back = claims.observed(with_status(lost), moved, LATER)
    assert (back.phase, back.endpoints[0].endpoint) == (Phase.ALLOCATED, "10.0.0.9:7070")
    assert truth(back)["Allocated"] == ("True", "Allocated", NOW), "it had its share all the time"


def test_a_draining_appliance_still_serves() -> None:
    draining = {"a": replace(HERE, phase=AppliancePhase.DRAINING)}
    assert claims.observed(with_status(placed()), draining, LATER) == placed()


def test_gpus_that_are_gone_for_good_are_replaced() -> None:
    other = replace(HERE, gpus=(replace(GPU, uuid="GPU-2"),))
    for now in ({}, {"a": other}):
        assert claims.gone_for_good(with_status(placed()), now)
    status = claims.displaced(with_status(placed()), "it left the pool", LATER)
    assert (status.phase, status.allocations, status.endpoints, status.consumers) == (Phase.PENDING, (), (), ())


def test_a_claim_on_a_gpu_that_failed_says_so_until_it_is_well() -> None:
    failed = {"a": replace(HERE, gpus=(replace(GPU, healthy=False, message="XID 79 (off the bus)"),))}
    assert claims.unhealthy(with_status(placed()), {"a": HERE}) == ""
    bad = claims.observed(with_status(placed()), failed, LATER)
    assert (bad.phase, bad.reason, bad.allocations) == (Phase.ALLOCATED, Reason.GPU_UNHEALTHY, (ALLOCATION,))
    assert all(word in bad.message for word in ("GPU-1", "node-a", "XID 79"))
    assert truth(bad) == {"Allocated": ("True", "Allocated", NOW), "Ready": ("False", "GPUUnhealthy", LATER)}
    assert claims.observed(with_status(bad), failed, "later still") == bad, "nothing is written again and again"
    lost = claims.observed(with_status(bad), {"a": replace(HERE, phase=AppliancePhase.LOST)}, LATER)
    assert (lost.phase, lost.reason) == (Phase.LOST, Reason.APPLIANCE_LOST)
    assert claims.observed(with_status(lost), failed, LATER).reason is Reason.GPU_UNHEALTHY
    back = claims.observed(with_status(bad), {"a": HERE}, "later still")
    assert (back.phase, back.reason) == (Phase.ALLOCATED, Reason.ALLOCATED)
    assert truth(back)["Ready"] == ("True", "Allocated", "later still")


def test_a_reason_of_a_later_release_is_replaced() -> None:
    later = ClaimStatus.from_object({**placed().to_object(), "reason": "OfTomorrow"})
    status = claims.observed(with_status(later), {"a": HERE}, LATER)
    assert (status.phase, status.reason, status.allocations) == (Phase.ALLOCATED, Reason.ALLOCATED, (ALLOCATION,))


def test_what_holds_a_pod_back_is_said_before_the_gpu() -> None:
    failed = {"a": replace(HERE, gpus=(replace(GPU, healthy=False, message="XID 94"),))}
    status, written = placed(), []
    for why in ("node a would turn the pod away", "node a would turn the pod away", ""):
        status = claims.held_back(CLAIM, claims.observed(with_status(status), failed, LATER), why, LATER)
        written.append(status.reason)
    assert written == [Reason.NO_DEVICE_PLUGIN, Reason.NO_DEVICE_PLUGIN, Reason.GPU_UNHEALTHY]


def test_a_pod_that_never_starts_gives_its_share_back() -> None:
    since = claims.allocated_since(with_status(placed()))
    assert since == datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    status = claims.expired(with_status(placed()), 300, LATER)
    assert (status.phase, status.reason, status.milli) == (Phase.EXPIRED, Reason.START_DEADLINE_EXCEEDED, 0)
    assert "train" in status.message
    assert claims.allocated_since(with_status(status)) is None


def test_consumers_keep_their_order_and_leave() -> None:
    second, third = PodReference("b", "2"), PodReference("c", "3")
    status = claims.with_consumers(placed(), [third, second, POD])
    assert status.consumers == (POD, third, second)
    assert claims.with_consumers(status, [second]).consumers == (second,)


def test_a_claim_says_that_its_pod_is_held_back_and_that_it_is_no_more() -> None:
    held = claims.held_back(CLAIM, placed(), "node a would turn the pod away", NOW)
    assert (held.phase, held.reason, held.allocations) == (
        Phase.ALLOCATED,
        Reason.NO_DEVICE_PLUGIN,
        (ALLOCATION,),
    )
    assert truth(held)["Ready"] == ("False", "NoDevicePlugin", NOW)
    assert claims.held_back(with_status(held), held, "another sentence", LATER) == held
    back = claims.held_back(with_status(held), held, "", LATER)
    assert (back.reason, truth(back)["Ready"]) == (Reason.ALLOCATED, ("True", "Allocated", LATER))
