"""Reads a pod's request and state, and builds the pod's claim and the annotations that the operator writes."""

import json
from collections.abc import Mapping
from typing import Any

from remotegpu.api.claims import Endpoint, GPUClaim, Mode, pod_claim_name, share_to_object
from remotegpu.api.kubernetes import (
    API_VERSION,
    CLAIM_ANNOTATION,
    GATE,
    MANAGER_LABEL,
    OFFLOAD_ANNOTATION,
    SESSION_ANNOTATION,
    STATUS_PREFIX,
    USER_PREFIX,
)
from remotegpu.api.pods import Pod, PodAsk, PodError, read_ask
from remotegpu.api.quantities import Ask

Object = dict[str, Any]


def annotations(pod: Object) -> Mapping[str, str]:
    found: Mapping[str, str] = pod["metadata"].get("annotations") or {}
    return found


def started(pod: Object) -> bool:
    return str(pod.get("status", {}).get("phase", "Pending")) != "Pending"


def service_account(pod: Object) -> str:
    name: str = pod["spec"].get("serviceAccountName", "default")
    return name


def turned_away(pod: Object) -> str:
    """Returns a message for people if a kubelet rejected the pod; empty otherwise."""
    status = pod.get("status", {})
    if status.get("phase") != "Failed" or status.get("reason") != "UnexpectedAdmissionError":
        return ""
    node = pod["spec"].get("nodeName", "")
    return (
        f"node {node} would not start the pod, whose share is free again: {status.get('message', '')[:600]}; "
        "Kubernetes does not try again, so make the pod anew unless a Job or another controller does"
    )


def named_claim(pod: Object) -> tuple[str, str]:
    """Returns the namespace and name of the claim in the pod's annotation. The name is empty without an annotation."""
    return pod["metadata"]["namespace"], annotations(pod).get(CLAIM_ANNOTATION, "")


def gated(pod: Object) -> bool:
    return any(gate["name"] == GATE for gate in pod["spec"].get("schedulingGates") or [])


def gates_of_others(pod: Object) -> list[str]:
    """Returns the pod's scheduling gates of other programs such as Kueue. With such a gate a pod must have no share."""
    return [gate["name"] for gate in pod["spec"].get("schedulingGates") or [] if gate["name"] != GATE]


def ask_of(pod: Object) -> PodAsk:
    """Returns the pod's request for a share. Raises PodError if the pod asks for none, or if the request is invalid."""
    ask = read_ask(Pod.of(pod))
    if ask is None:
        raise PodError(
            "the pod has our gate and asks for no share: make it anew with a limit such as remotegpu/milli: 250"
        )
    return ask


def claim_for(pod: Object, ask: PodAsk, share: Ask) -> Object:
    """Builds the claim for a pod that names no claim."""
    metadata = pod["metadata"]
    # No ownerReferences: after a foreground deletion of the pod's owner, the garbage collector would delete the claim
    # before the pod has ended.
    spec: Object = {"pool": ask.pool, **share_to_object(share)}
    if ask.offload:
        spec["mode"] = str(Mode.OFFLOAD)
    if ask.model:
        spec["model"] = ask.model
    if ask.spread:
        spec["placement"] = "Spread"
    if ask.suspendable:
        spec["suspendable"] = True
    if ask.movable:
        spec["movable"] = True
    if priority := pod["spec"].get("priority"):
        spec["priority"] = priority
    spec["pod"] = {"name": metadata["name"], "uid": metadata["uid"]}
    return {
        "apiVersion": API_VERSION,
        "kind": "GPUClaim",
        "metadata": {
            "name": pod_claim_name(metadata["name"], metadata["uid"]),
            "namespace": metadata["namespace"],
            # The pod's labels, so that users can select claims by them. The operator's own labels are only for pods.
            "labels": {**_foreign(metadata.get("labels") or {}), MANAGER_LABEL: "remotegpu-operator"},
        },
        "spec": spec,
    }


def _foreign(labels: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in labels.items() if not key.startswith((USER_PREFIX, STATUS_PREFIX))}


def refusal_of_claim(pod: Object, ask: PodAsk, claim: GPUClaim | None) -> tuple[str, str] | None:
    """Returns why the pod cannot use the claim that it names, as an Event's reason and message; None if it can."""
    if claim is None:
        namespace = pod["metadata"]["namespace"]
        return "NoSuchClaim", f"there is no GPUClaim {ask.claim} in namespace {namespace}: make it, or correct the name"
    if claim.spec.pod is not None:
        message = f"the GPUClaim {ask.claim} is that of pod {claim.spec.pod.name} alone: name one made by hand"
        return "ClaimOfAnotherPod", message
    offload = claim.spec.mode is Mode.OFFLOAD
    if offload and not ask.offload:
        return "ClaimOfOtherMode", (
            f"the GPUClaim {claim.name} has mode offload and the pod no annotation {OFFLOAD_ANNOTATION}: add it with "
            "the name of the ConfigMap that says what is offloaded, or name a claim with mode driver"
        )
    if ask.offload and not offload:
        return "ClaimOfOtherMode", (
            f"the pod has annotation {OFFLOAD_ANNOTATION} and the GPUClaim {claim.name} mode driver: leave the "
            "annotation out, or name a claim made with mode: offload"
        )
    return None


def session(claim: GPUClaim, endpoints: tuple[Endpoint, ...], bundle: str) -> str:
    """Builds the session annotation: the claim, the appliances' endpoints and the CA bundle, as JSON for the client."""
    return json.dumps(
        {
            "claim": {"namespace": claim.namespace, "name": claim.name, "uid": claim.uid},
            "ca": bundle,
            "appliances": [{"endpoint": one.endpoint, "server_name": one.server_name} for one in endpoints],
        },
        sort_keys=True,
    )


def session_of(pod: Object) -> str:
    return annotations(pod).get(SESSION_ANNOTATION, "")


def attachment(pod: Object, text: str) -> Object:
    """Builds the patch that adds the session annotation `text` to the pod and removes our scheduling gate."""
    body: Object = {
        "metadata": {
            "resourceVersion": pod["metadata"]["resourceVersion"],
            "annotations": {SESSION_ANNOTATION: text},
        }
    }
    if gated(pod):
        gates = [gate for gate in pod["spec"]["schedulingGates"] if gate["name"] != GATE]
        body["spec"] = {"schedulingGates": gates or None}
    return body
