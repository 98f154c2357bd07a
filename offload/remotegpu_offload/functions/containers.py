"""Lists, dicts and sets that are attributes of an instance in the acceptor. Local copies forward their changes.

For example, `model.items.append(1)` changes the attribute in the acceptor. The items themselves are ordinary copies.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from remotegpu_offload.functions.link import Link
from remotegpu_offload.objects import vocabulary
from remotegpu_offload.objects.codec import HANDLE, RefusedError, handle_of
from remotegpu_offload.objects.encoder import Encoder, register
from remotegpu_offload.objects.table import Handle

_ACCEPTOR: Final = "remotegpu_offload.functions.acceptor"


class Kept:
    """The base class of the three copies: a handle to the container in the acceptor, and the link for requests."""

    _plain: type[Any]
    _link: Link

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles and copies as an ordinary container."""
        return self._plain, (self._plain(self),)


def _changing(plain: type[Any], name: str) -> Callable[..., Any]:
    """Returns a method that changes a container: first in the acceptor, then here."""
    method = getattr(plain, name)

    def change(self: Any, *arguments: Any, **keywords: Any) -> Any:
        header = {"op": "call", "t": [_ACCEPTOR, "changed"]}
        given = [plain(each) if each is self else each for each in arguments]
        result = taken(self._link.ask(header, ((self, name, given, keywords), {})))
        try:
            if any(isinstance(each, Iterator) for each in arguments):
                raise LookupError("it has been used up there")
            if (plain, name) == (set, "pop"):
                set.remove(self, result)
            else:
                method(self, *given, **keywords)
        except Exception:
            # The local copy was older than the container.
            _fill(self, self._link.ask({"op": "copy"}, (self,)))
        return self if name[:3] == "__i" else result

    change.__name__, change.__doc__ = name, method.__doc__
    return change


_CHANGING: Final[dict[type[Any], tuple[str, ...]]] = {
    list: (
        *("append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse"),
        *("__setitem__", "__delitem__", "__iadd__", "__imul__"),
    ),
    dict: (
        *("update", "setdefault", "pop", "popitem", "clear"),
        *("__setitem__", "__delitem__", "__ior__"),
    ),
    set: (
        *("add", "remove", "discard", "pop", "clear", "update", "difference_update", "intersection_update"),
        *("symmetric_difference_update", "__ior__", "__iand__", "__isub__", "__ixor__"),
    ),
}


def _kind(plain: type[Any]) -> type[Any]:
    members = {name: _changing(plain, name) for name in _CHANGING[plain]}
    return type(plain.__name__, (Kept, plain), {"__module__": "builtins", "_plain": plain, **members})


KINDS: Final = {plain.__name__: _kind(plain) for plain in _CHANGING}


def kinds(link: Link) -> dict[str, Callable[[Handle, Any], Any]]:
    """Returns functions that make the copies of the acceptor's containers, by kind. `taken` fills each copy."""

    def make(kind: type[Any], handle: Handle, _info: Any) -> Any:
        made = kind()
        made._link = link
        setattr(made, HANDLE, handle)
        return made

    return {name: partial(make, kind) for name, kind in KINDS.items()}


def taken(answer: Any) -> Any:
    """Returns the value of the acceptor's answer about an attribute: a plain value, or a container with its content.

    Raises RefusedError for any other answer.
    """
    value, kept = answer if type(answer) is tuple and len(answer) == 2 else (None, answer)
    if kept is None:
        return value
    if not isinstance(kept, Kept):
        raise RefusedError("the acceptor's answer is no attribute: run the same version on both ends")
    return _fill(kept, value)


def _fill(kept: Any, content: Any) -> Any:
    plain = kept._plain
    if type(content) is not plain:
        raise RefusedError(f"the acceptor sent a {type(content).__name__} as a {plain.__name__}'s content")
    if plain is list:
        list.__setitem__(kept, slice(None), content)
    else:
        plain.clear(kept)
        plain.update(kept, content)
    return kept


def _reduce(writer: Encoder, value: Any) -> Any:
    if value._link.codec is not writer.codec:
        return value._plain, (value._plain(value),)
    return vocabulary.own, (handle_of(value).ident,)


register(Kept, _reduce)
