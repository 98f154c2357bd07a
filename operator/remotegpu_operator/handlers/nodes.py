"""Nodes: what happens when one is added or removed, or when its labels, taints or GPUs change.

A kubelet writes its node often; other changes are ignored.
"""

from typing import Any

import kopf

from remotegpu_operator.builders.appliances import CUDA_RESOURCE
from remotegpu_operator.process import Process

_seen: dict[str, Any] = {}


@kopf.on.event("", "v1", "nodes")
async def node_changed(type: str | None, name: str, body: kopf.Body, memo: Process, **_: Any) -> None:  # noqa: A002 (kopf's name)
    """Wakes the loop of pools, which reads all nodes again."""
    allocatable = body.get("status", {}).get("allocatable", {})
    view = (
        dict(body["metadata"].get("labels", {})),
        list(body.get("spec", {}).get("taints", [])),
        allocatable.get(CUDA_RESOURCE),
    )
    before = _seen.pop(name, None)
    if type != "DELETED":
        _seen[name] = view
    if _seen.get(name) != before:
        memo.pools.wake.set()
