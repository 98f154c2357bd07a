"""Coroutines and asynchronous generators whose bodies run at an acceptor: the loop of the program goes on meanwhile."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, Final

_END: Final = object()


def like(function: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, which waits, as a function of the same kind as `function`."""

    async def awaited(*arguments: Any, **keywords: Any) -> Any:
        return await asyncio.to_thread(call, *arguments, **keywords)

    async def generated(*arguments: Any, **keywords: Any) -> AsyncGenerator[Any, Any]:
        values = await asyncio.to_thread(call, *arguments, **keywords)
        sent = None
        try:
            while (value := await asyncio.to_thread(_next, values, sent)) is not _END:
                sent = yield value
        finally:
            await asyncio.to_thread(values.close)

    if inspect.isasyncgenfunction(function):
        return generated
    return awaited if inspect.iscoroutinefunction(function) else call


def _next(values: Any, sent: Any) -> Any:
    # Not a StopIteration: a coroutine cannot raise it.
    try:
        return next(values) if sent is None else values.send(sent)
    except StopIteration:
        return _END


def finished(result: Any) -> Any:
    """In the acceptor: what a coroutine returns, a generator for an asynchronous one, all else as it is."""
    if inspect.isasyncgen(result):
        return _driven(result)
    return asyncio.run(_as_coroutine(result)) if inspect.iscoroutine(result) else result


async def _as_coroutine(awaitable: Any) -> Any:
    return await awaitable


def _driven(values: AsyncGenerator[Any, Any]) -> Generator[Any, Any, None]:
    with asyncio.Runner() as runner:
        sent = None
        try:
            while True:
                try:
                    value = runner.run(_as_coroutine(values.asend(sent)))
                except StopAsyncIteration:
                    return
                sent = yield value
        finally:
            runner.run(_as_coroutine(values.aclose()))
