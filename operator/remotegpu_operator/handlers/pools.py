"""A pool was made, changed or deleted."""

import asyncio
from typing import Any

import kopf

from remotegpu.api.kubernetes import GROUP, POOLS, VERSION


def register(registry: kopf.OperatorRegistry, wake: asyncio.Event) -> None:
    @kopf.on.event(GROUP, VERSION, POOLS, registry=registry)
    async def pool_changed(**_: Any) -> None:
        wake.set()
