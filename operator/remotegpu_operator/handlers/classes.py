"""Priority classes (PriorityClass): a claim names one, and waits and gives way by its value."""

from typing import Any

import kopf

from remotegpu_operator.cluster.kube import Object
from remotegpu_operator.process import Process


@kopf.on.event("scheduling.k8s.io", "v1", "priorityclasses")
async def reported(event: Any, memo: Process, **_: Any) -> None:
    memo.report(memo.stores.classes, event)


def changed(process: Process, before: Object | None, now: Object | None) -> None:
    """Handles a class that appears or goes: claims that name it have its value, or 0, and are decided again.

    The value of a class cannot change.
    """
    name = (now or before or {})["metadata"]["name"]
    process.claims.class_changed(name, now["value"] if now is not None else None)
