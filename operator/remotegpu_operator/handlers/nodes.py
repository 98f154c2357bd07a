"""Nodes: appliances run on them, and pods with a share."""

from typing import Any

import kopf

from remotegpu_operator.claims.stores import same_node
from remotegpu_operator.cluster.kube import Object
from remotegpu_operator.process import Process


@kopf.on.event("", "v1", "nodes")
async def reported(event: Any, memo: Process, **_: Any) -> None:
    memo.report(memo.stores.nodes, event)


def changed(process: Process, before: Object | None, now: Object | None) -> None:
    """Handles a node that appears or goes, or whose labels, taints or amounts change. Heartbeats are ignored.

    Appliances: a pass of `pools` makes one for a new node that a pool selects. It drains the appliance of a node that
    went or is not selected any more (`Pools._replace`); the appliance's claims then have no GPU (`Claims._next`).
    Pods that are being deleted on the node: without the node, or with the taint `out-of-service`, they are over and
    their shares are released (`claims/leaving.py`).
    Pods that wait for a node with a device plugin: their gates may be removed now (`claims/landing.py`).
    """
    if before is not None and now is not None and same_node(before, now):
        return
    process.pools.wake.set()
    process.claims.node_changed((now or before or {})["metadata"]["name"])
