"""Claims (GPUClaim): each asks for a share of GPUs, and its status has the share that it was given.

kopf does not watch claims: an event costs it several times as much CPU as `cluster/cache.py`, which follows them.
"""

from remotegpu_operator.cluster.kube import Object
from remotegpu_operator.process import Process


def changed(process: Process, before: Object | None, now: Object | None) -> None:
    """Handles a claim that appears, changes or goes. In each case its pods are looked at again.

    Appears or changes: the allocator gets the request, or the share that the status says is held. The next round of
    decisions (`Claims._decide`) places the claim or says why it waits; the work queue writes the claim's next status
    (`Claims._next`).
    Goes: its share is free for the next round of decisions, and its usage ends.
    """
    if now is not None:
        process.claims.claim_seen(now)
    elif before is not None:
        process.claims.claim_gone(before["metadata"]["uid"])
