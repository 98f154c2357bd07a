"""A pod on its way into the cluster: the parts that it needs to find, wait for and use its share."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from remotegpu.api.kubernetes import (
    AUDIENCE,
    CLIENT,
    CONVERTED_ANNOTATION,
    GATE,
    POD_DIRECTORY,
    POD_LABEL,
    POD_LABEL_VALUE,
    POD_VOLUME,
    SESSION_ANNOTATION,
    SESSION_FILE,
    STATUS_PREFIX,
    TOKEN_FILE,
    pool_audience,
)
from remotegpu.api.pods import Object, PodError, containers, limits, milli_of, read_ask
from remotegpu_operator.webhook.offload import with_offload
from remotegpu_operator.webhook.origin import Origin
from remotegpu_operator.webhook.template import at, each_container, replaced, with_milli, without_key
from remotegpu_operator.webhook.volumes import with_mount, with_volume

TOKEN_SECONDS: Final = 3600
# Appliances of the previous release know none, and serve new pods until they are replaced: docs/operations.md.
_POOL_TOKENS: Final = os.environ.get("POOL_TOKENS", "true") != "false"


def volume(audience: str) -> Object:
    """Builds the volume as the API server stores it, with its defaults: a second call then changes nothing."""
    session = {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{SESSION_ANNOTATION}']"}
    token = {"audience": audience, "expirationSeconds": TOKEN_SECONDS, "path": TOKEN_FILE}
    sources = [
        {"serviceAccountToken": token},
        {"downwardAPI": {"items": [{"path": SESSION_FILE, "fieldRef": session}]}},
    ]
    return {"name": POD_VOLUME, "projected": {"defaultMode": 0o444, "sources": sources}}


MOUNT: Final[Mapping[str, Any]] = {"name": POD_VOLUME, "mountPath": POD_DIRECTORY, "readOnly": True}


@dataclass(frozen=True, slots=True)
class Rewritten:
    document: Object
    warnings: tuple[str, ...] = ()


def rewrite_pod(pod: Object, origin: Origin) -> Rewritten:
    """Returns the pod gated, with the client in the containers that have a share; unchanged if it asks for none.

    `origin`: who wrote its fractions.
    """
    written = at(pod, ("metadata", "annotations"))
    # Annotations of a live pod, in a manifest that was copied from it.
    copied = [SESSION_ANNOTATION, *(() if origin.converted else (CONVERTED_ANNOTATION,))]
    annotations = {key: value for key, value in written.items() if key not in copied}
    sent = at(pod, ("spec",))
    spec = converted = with_milli(sent, annotations, origin.is_default)
    ask = read_ask(annotations, spec)
    _refuse_forgeries(pod, annotations, asks=ask is not None)
    if ask is None:
        # A default of others may have been next to a `remotegpu/milli: 0`.
        return Rewritten(pod if spec is sent else {**pod, "spec": spec})
    refuse_node_name(spec)
    # The claim that the pod names may be in any pool.
    audience = pool_audience(ask.pool) if _POOL_TOKENS and not ask.claim else AUDIENCE
    spec = _mounted(_gated(_with_clients(spec)), audience)
    if ask.offload:
        spec = with_offload(spec, ask.offload, has_client)
    labels = {**at(pod, ("metadata", "labels")), POD_LABEL: POD_LABEL_VALUE}
    document = replaced({**pod, "spec": spec}, ("metadata", "labels"), labels)
    for key in copied:
        document = without_key(document, ("metadata", "annotations"), key)
    document = origin.marked(document, sent, converted)
    left_out = SESSION_ANNOTATION in written
    warning = f"annotation {SESSION_ANNOTATION} was left out: the pod gets a session of its own"
    return Rewritten(document, (warning,) if left_out else ())


def refuse_node_name(spec: Object) -> None:
    node = spec.get("nodeName")
    if node:
        raise PodError(
            f"spec.nodeName is set, so that the pod could not wait for its share; leave it out and choose the node by "
            f"spec.nodeSelector, kubernetes.io/hostname: {node}"
        )


def _refuse_forgeries(pod: Object, annotations: Mapping[str, str], asks: bool) -> None:
    """Refuses marks that only we write. With them a pod could wait for nothing, or pass for one with a share."""
    labels = at(pod, ("metadata", "labels"))
    forged = [f"annotation {key}" for key in annotations if key.startswith(STATUS_PREFIX)]
    forged += [f"label {key}" for key in labels if key.startswith(STATUS_PREFIX) and not (asks and key == POD_LABEL)]
    if not asks and SESSION_ANNOTATION in at(pod, ("metadata", "annotations")):
        forged.append(f"annotation {SESSION_ANNOTATION}")
    if not asks and any(gate.get("name") == GATE for gate in at(pod, ("spec",)).get("schedulingGates") or ()):
        forged.append(f"scheduling gate {GATE}")
    if forged:
        raise PodError(f"{forged[0]} is RemoteGPU's own, written to pods that ask for a share; leave it out")


def has_client(container: Object) -> bool:
    return milli_of(container) > 0 or CLIENT in limits(container)


def _with_clients(spec: Object) -> Object:
    """Adds the client to every container of a pod if none of them names a share."""
    if any(has_client(container) for container in containers(spec)):
        return spec
    # Not in init containers: kubelet refuses a pod with a device in both kinds when it restarts (k/k #138446).
    return {**spec, "containers": [_with_client(container) for container in spec.get("containers") or ()]}


def _with_client(container: Object) -> Object:
    resources = container.get("resources") or {}
    amounts = {name: {**(resources.get(name) or {}), CLIENT: "1"} for name in ("limits", "requests")}
    return {**container, "resources": {**resources, **amounts}}


def _gated(spec: Object) -> Object:
    gates = spec.get("schedulingGates") or []
    if any(gate.get("name") == GATE for gate in gates):
        return spec
    return {**spec, "schedulingGates": [*gates, {"name": GATE}]}


def _mounted(spec: Object, audience: str) -> Object:
    """Adds the volume with session and token, mounted in every container that has the client."""
    wanted = volume(audience)
    spec = {**spec, "volumes": [wanted if _is_ours(each) else each for each in spec.get("volumes") or []]}
    return each_container(with_volume(spec, wanted), lambda container: with_mount(container, MOUNT), has_client)


def _is_ours(found: Object) -> bool:
    """Whether it is our volume for some pool: the manifest may be copied from another pool's or an older pod."""
    if found.get("name") != POD_VOLUME:
        return False
    try:
        audience = found["projected"]["sources"][0]["serviceAccountToken"]["audience"]
    except (KeyError, IndexError, TypeError):
        return False
    known = audience == AUDIENCE or str(audience).startswith(pool_audience(""))
    return known and found == volume(audience)
