"""Coroutines and asynchronous generators whose bodies run in an acceptor. The program's event loop keeps running."""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, Final

_END: Final = object()


def like(function: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `call`, which blocks, as a function of the same kind as `function` (plain, coroutine or generator)."""

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
    # A coroutine cannot raise StopIteration.
    try:
        return next(values) if sent is None else values.send(sent)
    except StopIteration:
        return _END


def finished(result: Any) -> Any:
    """Completes an asynchronous result in the acceptor.

    Returns the result of a coroutine, a synchronous generator or context manager for an asynchronous one, and any other
    value unchanged.
    """
    if isinstance(result, contextlib._AsyncGeneratorContextManager):
        return Manager(result)
    if inspect.isasyncgen(result):
        return _driven(result)
    return asyncio.run(_as_coroutine(result)) if inspect.iscoroutine(result) else result


class Manager:
    """A synchronous wrapper of an asynchronous context manager, with its own event loop."""

    def __init__(self, manager: contextlib.AbstractAsyncContextManager[Any]) -> None:
        self._manager = manager
        self._runner = asyncio.Runner()

    def __enter__(self) -> Any:
        return self._runner.run(_as_coroutine(self._manager.__aenter__()))

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        with self._runner:
            return self._runner.run(_as_coroutine(self._manager.__aexit__(kind, error, trace)))


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
