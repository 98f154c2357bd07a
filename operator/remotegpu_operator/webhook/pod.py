"""Rewrites a new pod that asks for a share: adds the scheduling gate, the client and the session's volume."""

import os
from collections.abc import Iterable, Mapping
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
from remotegpu.api.pods import Container, Object, Pod, PodError, milli_of, read_ask
from remotegpu_operator.webhook.offload import add_offload
from remotegpu_operator.webhook.origin import Origin
from remotegpu_operator.webhook.template import convert
from remotegpu_operator.webhook.volumes import add_mount, add_volume

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


def rewrite_pod(document: Object, origin: Origin) -> Rewritten:
    """Returns the pod with our gate, and with the client in the containers that have a share.

    A pod that asks for no share gets neither. `origin` decides which fractions are only defaults. Raises PodError if
    the request is invalid.
    """
    pod = Pod.of(document)
    # Annotations that a manifest may have because it was copied from a running pod.
    ours = (SESSION_ANNOTATION, *(() if origin.converted else (CONVERTED_ANNOTATION,)))
    copied = {key: pod.annotations.pop(key) for key in ours if key in pod.annotations}
    converted = convert(pod, origin.is_default)
    ask = read_ask(pod)
    _refuse_forgeries(pod, copied, asks=ask is not None)
    if ask is None:
        pod.annotations |= copied
        # The pod differs if a default fraction next to `remotegpu/milli: 0` was removed.
        return Rewritten(pod.write(document))
    refuse_node_name(pod)
    # A claim that the pod names may belong to any pool.
    audience = pool_audience(ask.pool) if _POOL_TOKENS and not ask.claim else AUDIENCE
    _add_gate(pod)
    with_client = _with_client(pod)
    _add_session(pod, with_client, audience)
    if ask.offload:
        add_offload(pod, ask.offload, with_client)
    pod.labels[POD_LABEL] = POD_LABEL_VALUE
    warning = f"annotation {SESSION_ANNOTATION} was left out: the pod gets a session of its own"
    warnings = (warning,) if SESSION_ANNOTATION in copied else ()
    return Rewritten(origin.marked(pod.write(document), converted), warnings)


def refuse_node_name(pod: Pod) -> None:
    node = pod.spec.get("nodeName")
    if node:
        raise PodError(
            f"spec.nodeName is set, so that the pod could not wait for its share; leave it out and choose the node by "
            f"spec.nodeSelector, kubernetes.io/hostname: {node}"
        )


def _refuse_forgeries(pod: Pod, copied: Mapping[str, str], asks: bool) -> None:
    """Refuses annotations, labels and gates that only remotegpu writes. Raises PodError for the first one.

    With them a pod could wait without end, or look like a pod with a share.
    """
    forged = [f"annotation {key}" for key in pod.annotations if key.startswith(STATUS_PREFIX)]
    forged += [
        f"label {key}" for key in pod.labels if key.startswith(STATUS_PREFIX) and not (asks and key == POD_LABEL)
    ]
    if not asks and SESSION_ANNOTATION in copied:
        forged.append(f"annotation {SESSION_ANNOTATION}")
    if not asks and _has_gate(pod):
        forged.append(f"scheduling gate {GATE}")
    if forged:
        raise PodError(f"{forged[0]} is RemoteGPU's own, written to pods that ask for a share; leave it out")


def _with_client(pod: Pod) -> list[Container]:
    """Returns the containers with the client. All main containers get it if no container asks for a share itself."""
    chosen = [each for each in pod.containers if milli_of(each) > 0 or CLIENT in each.limits]
    if not chosen:
        # Not init containers: after a restart, a kubelet rejects a pod with devices in both kinds (k/k #138446).
        chosen = pod.main_containers
        for container in chosen:
            container.limits[CLIENT] = container.requests[CLIENT] = "1"
    return chosen


def _has_gate(pod: Pod) -> bool:
    return any(gate.get("name") == GATE for gate in pod.spec.get("schedulingGates") or ())


def _add_gate(pod: Pod) -> None:
    if not _has_gate(pod):
        pod.spec["schedulingGates"] = [*(pod.spec.get("schedulingGates") or ()), {"name": GATE}]


def _add_session(pod: Pod, with_client: Iterable[Container], audience: str) -> None:
    """Adds the volume with session and token, and mounts it in the containers that have the client."""
    wanted = volume(audience)
    pod.spec["volumes"] = [wanted if _is_ours(each) else each for each in pod.spec.get("volumes") or []]
    add_volume(pod, wanted)
    for container in with_client:
        add_mount(container, MOUNT)


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
