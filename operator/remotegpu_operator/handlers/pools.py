"""Pools: what happens when one is created, changed or deleted."""

from typing import Any

import kopf

from remotegpu.api.kubernetes import GROUP, POOLS, VERSION
from remotegpu_operator.process import Process


@kopf.on.event(GROUP, VERSION, POOLS)
async def pool_changed(memo: Process, **_: Any) -> None:
    """Wakes the loop of pools, which reads all pools again."""
    memo.pools.wake.set()
