"""Quotas (ResourceQuota): one with `requests.remotegpu/milli` limits the GPU time of a namespace's claims."""

from typing import Any

import kopf

from remotegpu_operator.cluster.kube import Object
from remotegpu_operator.process import Process


@kopf.on.event("", "v1", "resourcequotas")
async def reported(event: Any, memo: Process, **_: Any) -> None:
    memo.report(memo.stores.quotas, event)


def changed(process: Process, before: Object | None, now: Object | None) -> None:
    """Handles a quota that appears, changes or goes: the namespace's limits are read again, and waiting claims decided.

    A claim that has a share keeps it, also above a new limit.
    """
    process.claims.quotas_changed((now or before or {})["metadata"]["namespace"])
