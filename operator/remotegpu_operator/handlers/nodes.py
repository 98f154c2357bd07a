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

    Appliances (`Pools._pass`): a node that a pool selects gets one. The appliance of a node that went, or that is not
    selected any more, takes no new claims (`Pools._drain`); it is deleted when no claim is on it, or at a deadline, and
    at once if it does not answer. Its claims then wait for other GPUs (`builders.claims.gone_for_good`, `displaced`).
    Pods that are being deleted on the node: without the node, or with the taint `out-of-service`, they are over and
    their shares are free. With a node whose kubelet is silent, they are over at a latest end (`builders/leaving.py`).
    Pods with a share that wait for a node with a device plugin: their gates may go now (`claims/landing.py`).
    """
    if before is not None and now is not None and same_node(before, now):
        return
    process.pools.wake.set()
    process.claims.node_changed((now or before or {})["metadata"]["name"])
