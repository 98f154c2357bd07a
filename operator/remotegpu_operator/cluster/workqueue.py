"""A work queue of keys. Each key waits at most once, and only one task at a time works on it."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """A work queue as in Kubernetes' controllers. A key that is added while a task works on it is processed again.

    `work` is called with each key, in `tasks` concurrent tasks.
    """

    def __init__(self, work: Callable[[K], Awaitable[None]], tasks: int) -> None:
        self._work = work
        self._tasks = tasks
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._waiting: set[K] = set()
        self._working: set[K] = set()
        self._again: set[K] = set()
        self._later: dict[K, asyncio.TimerHandle] = {}

    def add(self, key: K) -> None:
        if key in self._working:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)

    def add_later(self, key: K, seconds: float) -> None:
        """Adds the key after `seconds`. If the key is scheduled already, the earlier time counts."""
        loop = asyncio.get_running_loop()
        if (known := self._later.get(key)) is not None:
            if known.when() <= loop.time() + seconds:
                return
            known.cancel()
        self._later[key] = loop.call_later(max(seconds, 0.0), self._due, key)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._tasks):
                group.create_task(self._serve())

    def _due(self, key: K) -> None:
        del self._later[key]
        self.add(key)

    async def _serve(self) -> None:
        while True:
            key = await self._ready.get()
            self._waiting.discard(key)
            self._working.add(key)
            try:
                await self._work(key)
            finally:
                self._working.discard(key)
                if key in self._again:
                    self._again.discard(key)
                    self.add(key)
