"""Watches nodes: wakes the pools' loop when a node is added or removed, or when its labels, taints or GPUs change.

A kubelet writes its node often; other changes are ignored.
"""

from collections.abc import Callable
from typing import Any

import kopf

from remotegpu_operator.builders.appliances import CUDA_RESOURCE


def register(registry: kopf.OperatorRegistry, look: Callable[[], None]) -> None:
    seen: dict[str, Any] = {}

    @kopf.on.event("", "v1", "nodes", registry=registry)
    async def node_changed(type: str | None, name: str, body: kopf.Body, **_: Any) -> None:  # noqa: A002 (kopf's name)
        if type == "DELETED":
            seen.pop(name, None)
            look()
            return
        allocatable = body.get("status", {}).get("allocatable", {})
        view = (
            dict(body["metadata"].get("labels", {})),
            list(body.get("spec", {}).get("taints", [])),
            allocatable.get(CUDA_RESOURCE),
        )
        if seen.get(name) != view:
            seen[name] = view
            look()
