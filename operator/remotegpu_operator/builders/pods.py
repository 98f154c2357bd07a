"""What a pod asks for and where it stands; and what the operator writes into it."""

import json
from collections.abc import Mapping
from typing import Any, Final

from remotegpu.api.claims import Endpoint, GPUClaim, pod_claim_name
from remotegpu.api.kubernetes import API_VERSION, COUNT_ANNOTATION, GATE, MANAGER_LABEL, SESSION_ANNOTATION
from remotegpu.api.pods import PodAsk, PodError, read_ask
from remotegpu.api.quantities import format_milli

Object = dict[str, Any]

_ENDED: Final = frozenset({"Succeeded", "Failed"})


def annotations(pod: Object) -> Mapping[str, str]:
    found: Mapping[str, str] = pod["metadata"].get("annotations") or {}
    return found


def ended(pod: Object) -> bool:
    """It needs its share no more: it came to its end, or is on the way out."""
    return "deletionTimestamp" in pod["metadata"] or pod.get("status", {}).get("phase") in _ENDED


def started(pod: Object) -> bool:
    return str(pod.get("status", {}).get("phase", "Pending")) != "Pending"


def gated(pod: Object) -> bool:
    return any(gate["name"] == GATE for gate in pod["spec"].get("schedulingGates") or [])


def ask_of(pod: Object) -> PodAsk:
    """What the webhook has let through, or what somebody wrote without it."""
    ask = read_ask(annotations(pod), pod["spec"])
    if ask is None:
        raise PodError(
            "the pod has our gate and asks for no share: make it anew with a limit such as remotegpu/milli: 250"
        )
    return ask


def claim_for(pod: Object, ask: PodAsk) -> Object:
    """The claim of a pod that names none."""
    metadata = pod["metadata"]
    spec: Object = {"pool": ask.pool, "count": ask.count}
    if ask.memory_bytes:
        spec["memory"] = ask.memory_bytes
    elif COUNT_ANNOTATION in annotations(pod):
        spec["fraction"] = format_milli(ask.milli // ask.count)
    else:
        spec["fraction"] = format_milli(ask.milli)
    if ask.model:
        spec["model"] = ask.model
    if ask.spread:
        spec["placement"] = "Spread"
    if priority := pod["spec"].get("priority"):
        spec["priority"] = priority
    spec["pod"] = {"name": metadata["name"], "uid": metadata["uid"]}
    owner = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": False,
        "blockOwnerDeletion": False,
    }
    return {
        "apiVersion": API_VERSION,
        "kind": "GPUClaim",
        "metadata": {
            "name": pod_claim_name(metadata["name"], metadata["uid"]),
            "namespace": metadata["namespace"],
            "labels": {MANAGER_LABEL: "remotegpu-operator"},
            "ownerReferences": [owner],
        },
        "spec": spec,
    }


def session(claim: GPUClaim, endpoints: tuple[Endpoint, ...], bundle: str) -> str:
    """The annotation from which the client learns where its share is."""
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
    """One patch: the pod learns where its share is, and may be scheduled."""
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
