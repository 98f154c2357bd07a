"""Coroutines and asynchronous generators whose bodies run at an acceptor: the loop of the program keeps running."""

import asyncio
import contextlib
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
    """In the acceptor: what a coroutine returns, a generator or context manager for an asynchronous one, all else as
    it is.
    """
    if isinstance(result, contextlib._AsyncGeneratorContextManager):
        return Manager(result)
    if inspect.isasyncgen(result):
        return _driven(result)
    return asyncio.run(_as_coroutine(result)) if inspect.iscoroutine(result) else result


class Manager:
    """An asynchronous context manager that is entered and left by calls."""

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
