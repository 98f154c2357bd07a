"""Builds the answer to an AdmissionReview of a pod or pod template. All functions are pure."""

import base64
import json
from collections.abc import Mapping
from typing import Any

from remotegpu.api.pods import Object, Path, Pod, PodError, at, read_ask
from remotegpu.api.quantities import QuantityError
from remotegpu_operator.webhook.origin import Origin, with_old_mark
from remotegpu_operator.webhook.patch import difference
from remotegpu_operator.webhook.pod import Rewritten, refuse_node_name, rewrite_pod
from remotegpu_operator.webhook.rules import SPECS
from remotegpu_operator.webhook.template import asks_by_fraction, convert, with_old_records, withdraw


class ReviewError(ValueError):
    """The request is not one that an API server with the webhook's configuration sends."""


def answer(review: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the AdmissionReview with the answer. Raises ReviewError if the review is malformed.

    The answer depends only on the review, so reinvocations and dry runs need no special case.
    """
    try:
        request = review["request"]
        resource = request["resource"]
        spec = SPECS[resource["group"], resource["resource"]]
        uid, document = request["uid"], request["object"]
    except (KeyError, TypeError) as problem:
        raise ReviewError(f"not an AdmissionReview of a pod or a pod template: {problem!r}") from None
    try:
        result = _rewritten(request, spec)
        old, new = request.get("oldObject") or {}, result.document
        as_before = with_old_mark(old, new)
        new = old if with_old_records(old, as_before) == old else new
        patch = list(difference(document, new))
    except (PodError, QuantityError) as refusal:
        return _response(
            uid, {"allowed": False, "status": {"code": 400, "reason": "BadRequest", "message": str(refusal)}}
        )
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        # The API server validates a pod's types before it calls the webhook, and those of other kinds afterwards.
        if resource["resource"] == "pods":
            raise ReviewError(f"no API server sends such a pod: {problem!r}") from problem
        said = f"remotegpu leaves this {resource['resource']} as it is: a part of it has no type of a pod template"
        return _response(uid, {"allowed": True, "warnings": [said]})
    allowed: dict[str, Any] = {"allowed": True}
    if patch:
        allowed |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
    if result.warnings:
        allowed["warnings"] = list(result.warnings)
    return _response(uid, allowed)


def _rewritten(request: Mapping[str, Any], path: Path) -> Rewritten:
    document: Object = request["object"]
    is_pod = request["resource"]["resource"] == "pods"
    if is_pod and request["operation"] == "CREATE":
        return rewrite_pod(document, Origin.of(request, path))
    # An update of a pod by its own manifest has the fraction again. All other parts of the pod are rewritten already.
    pod, gone = Pod.of(document, path), frozenset[str]()
    if not is_pod:
        manager = at(request, ("options",)).get("fieldManager", "")
        gone = withdraw(pod, request.get("oldObject") or {}, document, path, manager)
    origin, by_fraction = Origin.of(request, path, gone), asks_by_fraction(pod)
    converted = convert(pod, origin.is_default)
    if by_fraction and not is_pod:
        # Refuse a bad template now. Otherwise its pods would be refused, and only a controller's Events would say so.
        read_ask(pod)
        refuse_node_name(pod)
    return Rewritten(origin.marked(pod.write(document, path), converted))


def _response(uid: str, response: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {"uid": uid, **response}}
