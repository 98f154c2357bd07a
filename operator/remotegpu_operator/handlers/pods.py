"""Pods with a share: the webhook gives them a label and a scheduling gate. Other pods are not watched here.

The pods of appliances and of device plugins are followed by `pools` and `claims/landing.py` (`cluster/cache.py`).
"""

from typing import Any

import kopf

from remotegpu_operator.cluster.kube import Object
from remotegpu_operator.process import Process


@kopf.on.event("", "v1", "pods")
async def reported(event: Any, memo: Process, **_: Any) -> None:
    memo.report(memo.stores.pods, event)


def changed(process: Process, before: Object | None, now: Object | None) -> None:
    """Handles a pod that appears, changes or goes: the work queue looks at the pod and its claim (`Claims._work_pod`).

    Appears: the pod's claim is created (`claims/gates.py`), unless the pod names a claim.
    Changes: the gate is removed when the claim is allocated and no kubelet would reject the pod. A pod that has ended
    (`claims/leaving.py`) gives its own claim back: the claim is deleted.
    Goes: its own claim is deleted (`Claims._orphaned`); a claim that it named loses a consumer.
    """
    pod = now or before
    assert pod is not None
    process.claims.pod_changed(pod, there=now is not None)
