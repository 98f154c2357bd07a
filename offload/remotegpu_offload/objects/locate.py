"""Finds the part of a value that cannot be pickled, for a message with a remedy."""

import pickle
from collections.abc import Callable, Iterator
from typing import Any, Final

from remotegpu_offload.objects.errors import CrossingError

_LOOKED_AT: Final = 2000  # most parts that the search examines; after that it names the part found so far
_SHOWN: Final = 60

Crosses = Callable[[Any], Exception | None]


def is_pickling(error: Exception) -> bool:
    """Returns whether the error is one by which pickle and the library's classes report an unpicklable value."""
    return isinstance(error, pickle.PicklingError | TypeError | AttributeError | RecursionError | NotImplementedError)


def find(value: Any, error: Exception, crosses: Crosses) -> CrossingError:
    """Makes the error: it names the part that cannot be sent, its path, and a remedy."""
    path, part, cause = _deepest(value, error, crosses)
    if isinstance(cause, CrossingError):
        return CrossingError(cause.what, path)
    kind = f"{type(part).__module__}.{type(part).__qualname__}"
    if _is_depth(cause):
        advice = "is nested too deeply to be sent: raise sys.setrecursionlimit, or send it in parts"
    else:
        advice = (
            f"cannot be sent to the other end ({cause}): leave it out, make it there, or write __getstate__ of the "
            "class that holds it"
        )
    return CrossingError(f"a {kind}, {advice}", path)


def _is_depth(error: BaseException) -> bool:
    return isinstance(error, RecursionError) or isinstance(error.__cause__, RecursionError)


def _deepest(value: Any, error: Exception, crosses: Crosses) -> tuple[str, Any, Exception]:
    path, looked_at, seen = "", 0, {id(value)}
    # In a value that is nested too deeply, every part except the innermost is nested too deeply as well.
    while not _is_depth(error):
        for name, part in _parts(value):
            if id(part) in seen:
                continue
            seen.add(id(part))
            looked_at += 1
            found = crosses(part) if looked_at <= _LOOKED_AT else None
            # A CrossingError names the faulty part, so a part with the same error contains it.
            if found is not None and (not isinstance(error, CrossingError) or str(found) == str(error)):
                path, value, error = path + name, part, found
                break
        else:
            break
    return path, value, error


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    match value:
        case dict():
            for key, part in list(value.items()):
                yield f"[{_short(key)}]", part
        case list() | tuple() | set() | frozenset():
            for index, part in enumerate(value):
                yield f"[{index}]", part
        case _:
            try:
                attributes = dict(vars(value))
            except TypeError:
                attributes = {}
            for name, part in attributes.items():
                yield f".{name}", part
    # A function is sent with the values to which it refers.
    code = getattr(value, "__code__", None)
    cells = getattr(value, "__closure__", None) or ()
    for name, cell in zip(getattr(code, "co_freevars", ()), cells, strict=False):
        try:
            yield f" -> {name}", cell.cell_contents
        except ValueError:
            continue
    scope = getattr(value, "__globals__", {})
    for name in getattr(code, "co_names", ()):
        if name in scope:
            yield f" -> {name}", scope[name]


def _short(key: Any) -> str:
    text = repr(key)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
