"""Runs work in a thread with its own event loop, so that the calling event loop stays on time."""

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def beside(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs `work` in an event loop of another thread. Returns its result or raises its exception.

    A cancellation cancels `work` and waits for its end.
    """
    begun: concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = concurrent.futures.Future()

    async def run() -> T:
        task = asyncio.current_task()
        assert task is not None
        begun.set_result((asyncio.get_running_loop(), task))
        return await work()

    thread = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(run())))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        loop, task = await asyncio.wrap_future(begun)
        with contextlib.suppress(RuntimeError):  # the loop is closed: the work has ended already
            loop.call_soon_threadsafe(task.cancel)
        await asyncio.gather(thread, return_exceptions=True)
        raise
