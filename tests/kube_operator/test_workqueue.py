"""Tests of the work queue: no key is lost, and no two tasks work on the same key at a time."""

from __future__ import annotations

import asyncio
from collections import Counter

from remotegpu_operator.cluster.workqueue import WorkQueue


def test_a_key_is_worked_on_by_one_task_at_a_time_and_after_its_last_change() -> None:
    async def follow() -> None:
        state: Counter[int] = Counter()
        seen: dict[int, int] = {}
        working: set[int] = set()
        runs = 0

        async def work(key: int) -> None:
            nonlocal runs
            assert key not in working
            working.add(key)
            found = state[key]
            await asyncio.sleep(0)
            seen[key] = found
            await asyncio.sleep(0)
            working.discard(key)
            runs += 1

        queue = WorkQueue(work, 4)
        running = asyncio.create_task(queue.run())
        for number in range(2000):
            key = number * 7 % 10
            state[key] += 1
            queue.add(key)
            if number % 3 == 0:
                await asyncio.sleep(0)
        async with asyncio.timeout(10):
            while seen != dict(state) or working:  # noqa: ASYNC110 (the queue tells nobody when it is empty)
                await asyncio.sleep(0)
        assert runs <= 2000
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(follow())


def test_of_two_times_the_earlier_counts() -> None:
    async def follow() -> None:
        done = asyncio.Event()

        async def work(key: str) -> None:
            done.set()

        queue = WorkQueue(work, 1)
        running = asyncio.create_task(queue.run())
        queue.add_later("a", 3600)
        queue.add_later("a", 0)
        queue.add_later("a", 3600)
        async with asyncio.timeout(10):
            await done.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(follow())


def test_work_that_fails_ends_the_queue() -> None:
    async def follow() -> None:
        async def work(key: str) -> None:
            raise LookupError(key)

        queue = WorkQueue(work, 3)
        queue.add("a")
        try:
            async with asyncio.timeout(10):
                await queue.run()
        except* LookupError as group:
            assert len(group.exceptions) == 1
        else:
            raise AssertionError("the error is seen")

    asyncio.run(follow())
