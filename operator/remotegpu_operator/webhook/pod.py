"""Rewrites a new pod that asks for a share: adds the scheduling gate, the client and the session's volume."""

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
# Whether tokens are for one pool. Appliances of the previous release do not accept such tokens, and serve new pods
# until they are replaced: docs/operations.md.
_POOL_TOKENS: Final = os.environ.get("POOL_TOKENS", "true") != "false"


def volume(audience: str) -> Object:
    """Builds the volume with the pod's session and token.

    The volume has all defaults, as the API server stores it: a second pass then changes nothing.
    """
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
    """Returns the pod with our gate, and with the client in the containers that have a share.

    A pod that asks for no share gets neither. `origin` decides which fractions are only defaults. Raises PodError if
    the request is invalid.
    """
    written = at(pod, ("metadata", "annotations"))
    # Annotations that a manifest may have because it was copied from a running pod.
    copied = [SESSION_ANNOTATION, *(() if origin.converted else (CONVERTED_ANNOTATION,))]
    annotations = {key: value for key, value in written.items() if key not in copied}
    sent = at(pod, ("spec",))
    spec = converted = with_milli(sent, annotations, origin.is_default)
    ask = read_ask(annotations, spec)
    _refuse_forgeries(pod, annotations, asks=ask is not None)
    if ask is None:
        # The spec differs if a default fraction next to `remotegpu/milli: 0` was removed.
        return Rewritten(pod if spec is sent else {**pod, "spec": spec})
    refuse_node_name(spec)
    # A claim that the pod names may belong to any pool.
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
    """Refuses annotations, labels and gates that only remotegpu writes. Raises PodError for the first one.

    With them a pod could wait without end, or look like a pod with a share.
    """
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
    """Adds the client to every container of a pod if no container asks for a share itself."""
    if any(has_client(container) for container in containers(spec)):
        return spec
    # Not to init containers: after a restart, a kubelet rejects a pod with devices in both kinds (k/k #138446).
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
    """Adds the volume with session and token, and mounts it in every container that has the client."""
    wanted = volume(audience)
    spec = {**spec, "volumes": [wanted if _is_ours(each) else each for each in spec.get("volumes") or []]}
    return each_container(with_volume(spec, wanted), lambda container: with_mount(container, MOUNT), has_client)


def _is_ours(found: Object) -> bool:
    """Whether the volume is ours for any pool. The manifest may be copied from a pod of another pool or release."""
    if found.get("name") != POD_VOLUME:
        return False
    try:
        audience = found["projected"]["sources"][0]["serviceAccountToken"]["audience"]
    except (KeyError, IndexError, TypeError):
        return False
    known = audience == AUDIENCE or str(audience).startswith(pool_audience(""))
    return known and found == volume(audience)
