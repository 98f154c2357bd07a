"""Proxies: each has a handle to an object at the other end, and sends a request there whenever it is used."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from remotegpu_offload.functions.link import Link
from remotegpu_offload.functions.lost import naming
from remotegpu_offload.objects import encoder, vocabulary
from remotegpu_offload.objects.codec import HANDLE, CrossingError, handle_of
from remotegpu_offload.objects.table import Handle

_FILES: Final = frozenset(
    (
        "read",
        "readline",
        "write",
        "seek",
        "tell",
        "flush",
        "close",
        "truncate",
        "isatty",
        "readable",
        "writable",
        "seekable",
    )
)
# Methods of this end's objects that the other end may call, by the kind under which the object was sent.
METHODS: Final = {
    "call": frozenset(("__call__",)),
    "iter": frozenset(("__next__", "send", "throw", "close")),
    "file": _FILES,
    "object": frozenset[str](),
    "manager": frozenset(("__enter__", "__exit__")),
    "decorator": frozenset(("__enter__", "__exit__", "_recreate_cm")),
}
# How many values of an iterator are fetched ahead at most.
AHEAD: Final = 64


class Proxy:
    """The base class of proxies: a handle, and the link for requests."""

    def __init__(self, link: Link, handle: Handle, info: Any) -> None:
        self._link = link
        self.info = info
        setattr(self, HANDLE, handle)

    def _ask(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        with naming(lambda: f"in {method.strip('_')} of {self!r}"):
            return self._link.ask({"o": handle_of(self).ident, "m": method}, (arguments, keywords))


class RemoteFunction(Proxy):
    """A callable of the other end; a call runs there."""

    def __init__(self, link: Link, handle: Handle, info: Any) -> None:
        super().__init__(link, handle, info)
        described = info if isinstance(info, dict) else {}
        self.__name__ = str(described.get("name", "function"))
        self.__doc__ = str(described.get("doc", ""))

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._ask("__call__", *arguments, **keywords)

    def __repr__(self) -> str:
        return f"<function {self.__name__} of the other end>"


class RemoteIterator(Proxy):
    """A generator or iterator of the other end.

    Fetches one value, then two, four, ... in advance if they are ready quickly.
    """

    def __init__(self, link: Link, handle: Handle, info: Any) -> None:
        super().__init__(link, handle, info)
        self._name = str(info)
        self._fetched: deque[Any] = deque()
        self._end: BaseException | None = None
        self._batch = 1

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self._fetched:
            self._fetch()
        if self._fetched:
            return self._fetched.popleft()
        return self._ended()

    def _ended(self) -> Any:
        end, self._end = self._end or StopIteration(), StopIteration()
        try:
            raise end
        finally:
            # The exception's traceback holds this frame.
            del end

    def _fetch(self) -> None:
        if self._end is not None:
            return
        with naming(lambda: f"in the next values of {self!r}"):
            values, end = self._link.pull(handle_of(self).ident, self._batch)
        self._fetched.extend(values)
        self._end = end
        self._batch = min(self._batch * 2, AHEAD)

    def _check_not_ahead(self, what: str) -> None:
        if self._fetched:
            raise RuntimeError(
                f"{what}: {len(self._fetched)} values of {self._name} were fetched ahead, so that it is further than "
                "this program; use it from the beginning by send(), or let the function that makes it run here"
            )

    def send(self, value: Any) -> Any:
        self._check_not_ahead("send()")
        self._batch = 1
        return self._ask("send", value)

    def throw(self, error: BaseException) -> Any:
        self._check_not_ahead("throw()")
        return self._ask("throw", error)

    def close(self) -> None:
        """Closes the generator at the other end, and drops the values that were fetched ahead."""
        self._fetched.clear()
        if self._end is None:
            self._end = StopIteration()
            self._ask("close")

    def __repr__(self) -> str:
        return f"<{self._name} of the other end>"


class RemoteFile(Proxy):
    """An open file of the other end: reads and writes happen there, at the file's position."""

    def __init__(self, link: Link, handle: Handle, info: Any) -> None:
        super().__init__(link, handle, info)
        described = info if isinstance(info, dict) else {}
        self.name = str(described.get("name", ""))
        self.mode = str(described.get("mode", "r"))
        self.encoding = str(described.get("encoding", "utf-8"))
        self.closed = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in METHODS["file"]:
            raise AttributeError(name)
        return lambda *arguments, **keywords: self._ask(name, *arguments, **keywords)

    def readinto(self, buffer: Any) -> int:
        data = self._ask("read", len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readlines(self) -> list[Any]:
        return list(self)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self._ask("write", line)

    def close(self) -> None:
        self.closed = True
        self._ask("close")

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        line = self._ask("readline")
        if not line:
            raise StopIteration
        return line

    def __enter__(self) -> "RemoteFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<file {self.name!r} of the other end>"


class RemoteObject(Proxy):
    """An object that stays at the other end. Pass it to calls, or call `fetch` for a copy."""

    def __init__(self, link: Link, handle: Handle, info: Any) -> None:
        super().__init__(link, handle, info)
        self._name = str(info)

    def fetch(self) -> Any:
        """Returns a copy of the object.

        Raises CrossingError if the object cannot be copied, RefusedError if its type is not allowed here.
        """
        with naming(lambda: f"in fetch of {self!r}"):
            return self._link.ask({"op": "copy"}, (self,))

    def __repr__(self) -> str:
        return f"<{self._name} of the other end>"


class RemoteManager(RemoteObject):
    """A context manager of the other end. Its methods run there, and `__exit__` gets the exception of the block."""

    def __enter__(self) -> Any:
        # A value that cannot be copied stays at the other end.
        return self._link.ask({"o": handle_of(self).ident, "m": "__enter__", "returns": "auto"}, ((), {}))

    def __exit__(self, kind: Any, error: Any, _traceback: Any) -> Any:
        # Tracebacks are not sent.
        return self._ask("__exit__", kind, error, None)


class RemoteDecorator(RemoteManager, contextlib.ContextDecorator):
    """The result of a function that `contextlib.contextmanager` decorates."""

    def _recreate_cm(self) -> Any:
        """Makes a new manager for each call of a function that this manager decorates."""
        return self._ask("_recreate_cm")


class RemoteAsynchronousManager(RemoteObject):
    """The result of a function that `contextlib.asynccontextmanager` decorates.

    The program's event loop keeps running.
    """

    async def __aenter__(self) -> Any:
        return await asyncio.to_thread(self._ask, "__enter__")

    async def __aexit__(self, kind: Any, error: Any, _traceback: Any) -> Any:
        return await asyncio.to_thread(self._ask, "__exit__", kind, error, None)


def by_kind(link: Link) -> dict[str, Callable[[Handle, Any], Any]]:
    """Returns functions that make proxies, by the kind of object."""
    made: dict[str, type[Proxy]] = {
        "call": RemoteFunction,
        "iter": RemoteIterator,
        "file": RemoteFile,
        "object": RemoteObject,
        "manager": RemoteManager,
        "decorator": RemoteDecorator,
        "asynchronous manager": RemoteAsynchronousManager,
    }
    return {kind: partial(stand, link) for kind, stand in made.items()}


def _reduce(writer: encoder.Encoder, value: Proxy) -> Any:
    if value._link.codec is not writer.codec:
        raise CrossingError(f"{value!r} lives at another acceptor: fetch() its value, and pass that")
    return vocabulary.own, (handle_of(value).ident,)


encoder.register(Proxy, _reduce)
