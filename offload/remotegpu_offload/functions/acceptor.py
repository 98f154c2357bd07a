"""The acceptor's half of function mode: makes the calls that the client requests."""

import importlib
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from remotegpu_offload.code.finder import explain
from remotegpu_offload.functions import asynchronous, moving, mutation, proxies
from remotegpu_offload.functions.link import Link
from remotegpu_offload.objects.codec import Codec, CrossingError
from remotegpu_offload.objects.encoder import Encoder, is_manager, register
from remotegpu_offload.wire.errors import LostError
from remotegpu_offload.wire.frames import Message, Service

if TYPE_CHECKING:
    from remotegpu_offload.acceptor.session import AcceptorSession

_MOST_WARNINGS = 100


class Calls:
    """Executes the client's calls. The client may call any function, because this process serves only that client."""

    def __init__(self, session: "AcceptorSession") -> None:
        self._loaded = session.loaded
        self.codec = Codec(client=False)
        self.codec.named = find
        self.link = Link(self.codec, lambda: session.peer, self._perform, f"the acceptor {session.environment.name}")
        self.link.store = moving.Store(self.codec)
        self.link.explain = self._explain
        self.codec.proxies.update(proxies.by_kind(self.link))
        self._warnings = _Warnings()
        # Functions that were sent by value, by the client's numbers. The client reports which of them are outdated.
        self._functions: dict[int, Any] = {}

    def _perform(self, header: dict[str, Any], payload: Any) -> tuple[Any, dict[str, Any]]:
        match header.get("op"):
            case "copy":
                return payload[0], {"inside": (payload[0],)}
            case None:
                if header["m"] == "__next__":
                    return self._pull(header)
                arguments, keywords = payload
                result = getattr(self.codec.exports.get(header["o"]), header["m"])(*arguments, **keywords)
                return self._returned(header, result), {}
            case _:
                if "levels" in header:
                    self._levels(header["levels"])
                if "resident" in header and not self.codec.resident:
                    self.codec.resident = tuple(header["resident"])
                    self.codec.reducers.clear()
                self._warnings.found = []
                value, more = self._call(header, payload)
                if Service.FILES in self._loaded:
                    # Sends data that the call wrote through memory maps.
                    self._loaded[Service.FILES].remote.sync()
                if self._warnings.found:
                    more["warned"] = self._warnings.found
                return value, more

    def _explain(self, error: BaseException) -> None:
        if Service.CODE in self._loaded:
            explain(error, self._loaded[Service.CODE])

    def forget_functions(self) -> None:
        """Drops the functions that were sent by value. The client sends them again."""
        self._functions.clear()

    def _pull(self, header: dict[str, Any]) -> tuple[Message, dict[str, Any]]:
        values: Iterator[Any] = self.codec.exports.get(header["o"])
        return self.link.push(values, int(header["most"])), {}

    def _call(self, header: dict[str, Any], payload: Any) -> tuple[Any, dict[str, Any]]:
        if "t" in header:
            function, (given, keywords) = find(*header["t"]), payload
            arguments = given
        elif "m" in header:
            given, keywords = payload
            function, arguments = getattr(given[0], header["m"]), given[1:]
        else:
            function, given, keywords = payload
            arguments = given
            for number in header.get("dead", ()):
                self._functions.pop(number, None)
            if "f" in header:
                if function is None and (function := self._functions.get(header["f"])) is None:
                    return None, {"unknown": True}
                self._functions[header["f"]] = function
        if "a" in header:
            function = getattr(function, header["a"])
        keys = header.get("mutates")
        if keys is None:
            return self._returned(header, asynchronous.finished(function(*arguments, **keywords))), {}
        watch = mutation.Watch(given, keywords, keys, self._digest, self.codec.exports.has)
        result = asynchronous.finished(function(*arguments, **keywords))
        more: dict[str, Any] = {"changes": True}
        same = watch.same(result)
        if same is not None:
            more["same"] = same
            result = None
        changes = watch.changes(None if header.get("returns") == "ref" else result)
        more["inside"] = mutation.told(changes[1])
        return (self._returned(header, result), changes), more

    def _returned(self, header: dict[str, Any], result: Any) -> Any:
        ident = header.get("id")
        if ident is not None:
            self.codec.exports.place(ident, result, header.get("kind", "object"))
            return None
        match header.get("returns"):
            case "ref":
                return _Stays(result)
            case "auto":
                return result if self._can_cross(result) else _Stays(result)
        return result

    def _can_cross(self, value: Any) -> bool:
        try:
            self.codec.unsent(self.codec.dumps(value))
        except (CrossingError, TypeError):
            return False
        return True

    def _digest(self, value: Any) -> str:
        writer = Encoder(self.codec, (value,))
        writer.comparing = True
        try:
            writer.dump(value)
            return mutation.digest([*writer.pieces, *(buffer.raw() for buffer in writer.buffers)])
        finally:
            self.codec.exports.release((ident, 1) for ident in writer.sent)

    def _levels(self, levels: dict[str, int]) -> None:
        """Sets the levels of the program's own loggers, so that only records that they accept are created here."""
        for name, level in levels.items():
            logging.getLogger(name or None).setLevel(level)

    def warned(self, message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any) -> None:
        """Replaces `warnings.showwarning`: collects warnings, which the program's own filters handle after the call."""
        told = self._warnings.found
        if len(told) < _MOST_WARNINGS:
            told.append([str(message), category.__module__, category.__qualname__, filename, lineno])


class _Warnings(threading.local):
    """The warnings of the current call, for each thread."""

    def __init__(self) -> None:
        self.found: list[list[Any]] = []


class _Stays:
    """Wraps a result that stays in the acceptor and is sent as a handle."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _reduce_stays(writer: Encoder, value: _Stays) -> Any:
    kind = type(value.value)
    return writer.export(value.value, "manager" if is_manager(kind) else "object", kind.__qualname__)


register(_Stays, _reduce_stays)
register(
    asynchronous.Manager, lambda writer, value: writer.export(value, "asynchronous manager", "asynchronous manager")
)


class _Kept:
    """Wraps a container that stays in the acceptor. The client gets a copy whose changes are made here too."""

    def __init__(self, value: Any) -> None:
        self.value = value


register(_Kept, lambda writer, kept: writer.export(kept.value, type(kept.value).__name__))


class _Records(logging.Handler):
    """Sends records that are logged here to the program's own loggers."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("remotegpu_offload"):
            return
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + (logging.Formatter().formatException(record.exc_info))
        told = [record.name, record.levelno, record.pathname, record.lineno, text, record.funcName]
        try:
            self._link.log(told)
        except LostError:
            return


def find(module: str, name: str) -> Any:
    """Returns the object with this name in this process. Imports its module if necessary.

    Raises ImportError, AttributeError.
    """
    found: Any = sys.modules.get(module) or importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def attribute(instance: Any, name: str) -> tuple[Any, _Kept | None]:
    """Returns an attribute's value; for a list, dict or set also a handle, so that the client can change it here."""
    return _with_handle(getattr(instance, name))


def changed(container: Any, name: str, arguments: Any, keywords: Any) -> tuple[Any, _Kept | None]:
    """Calls a container's method. Returns the result as `attribute` does."""
    result = getattr(container, name)(*arguments, **keywords)
    return _with_handle(None if result is container else result)


def _with_handle(value: Any) -> tuple[Any, _Kept | None]:
    return value, _Kept(value) if type(value) in (list, dict, set) else None


def filled(kind: Any, state: Any) -> Any:
    """Makes an instance without its constructor and sets its state, as unpickling does."""
    made = kind.__new__(kind)
    if hasattr(made, "__setstate__"):
        made.__setstate__(state)
    elif state is not None:
        fields, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
        if fields:
            vars(made).update(fields)
        for name, value in (slots or {}).items():
            setattr(made, name, value)
    return made


def with_attributes(kind: Any, attributes: dict[str, Any]) -> Any:
    """Makes an instance without its constructor, with these attributes."""
    made = kind.__new__(kind)
    vars(made).update(attributes)
    return made


def is_fitted(estimator: Any) -> bool:
    """Returns whether the estimator is fitted, by scikit-learn's own check."""
    validation = importlib.import_module("sklearn.utils.validation")
    exceptions = importlib.import_module("sklearn.exceptions")
    try:
        validation.check_is_fitted(estimator)
    except exceptions.NotFittedError:
        return False
    return True


def attach(session: "AcceptorSession") -> None:
    """Starts to serve calls and objects of this session."""
    calls = Calls(session)
    session.objects = calls.codec
    session.peer.serve(Service.CALL, calls.link.answer)
    session.peer.serve(Service.OBJECTS, calls.link.answer_about_objects)
    session.loaded[Service.CALL] = session.loaded[Service.OBJECTS] = calls
    session.stats["objects"] = lambda: {
        "held": len(calls.codec.exports),
        "pages": len(calls.codec.cache),
        "page_bytes": calls.codec.cache.bytes,
    }
    finder = session.loaded.get(Service.CODE)
    if finder is not None:
        # The functions refer to the old modules.
        finder.on_changed.append(calls.forget_functions)
    # In program mode, the program has its own loggers and filters, and its stderr is the client's.
    if not (session.hello.get("stdio") or {}).get("program"):
        warnings.showwarning = calls.warned  # type: ignore[assignment]
        warnings.simplefilter("always")
        logging.getLogger().addHandler(_Records(calls.link))
