"""Pools (GPUPool): each names nodes, and runs an appliance on each of them."""

from typing import Any

import kopf

from remotegpu.api.kubernetes import GROUP, POOLS, VERSION
from remotegpu_operator.cluster.kube import Object
from remotegpu_operator.process import Process


@kopf.on.event(GROUP, VERSION, POOLS)
async def reported(event: Any, memo: Process, **_: Any) -> None:
    memo.report(memo.stores.pools, event)


def changed(process: Process, _before: Object | None, _now: Object | None) -> None:
    """Handles a pool that appears, changes or goes: wakes the loop of `pools` for a pass (`Pools._pass`).

    Appears or changes: the pass makes or changes the pool's appliances, certificates, Service, NetworkPolicy and
    disruption budget. An appliance with an outdated template is replaced when no claim uses it, or at a deadline.
    Goes: the pool's GPUs are not allocated any more, its claims wait (`Claims.remove_pool`), and its appliances drain.
    """
    process.pools.wake.set()
