"""Watches pools: wakes the pools' loop when a pool is created, changed or deleted."""

from collections.abc import Callable
from typing import Any

import kopf

from remotegpu.api.kubernetes import GROUP, POOLS, VERSION


def register(registry: kopf.OperatorRegistry, look: Callable[[], None]) -> None:
    @kopf.on.event(GROUP, VERSION, POOLS, registry=registry)
    async def pool_changed(**_: Any) -> None:
        look()
