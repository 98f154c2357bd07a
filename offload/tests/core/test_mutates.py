"""`mutates`: what a call has changed there is as the same call here would have left it, in the very same objects."""

from __future__ import annotations

import collections
import datetime
import decimal
import io
import types
from typing import Any

import numpy as np
import pytest
from offload_modules import UserModule

from remotegpu_offload.client.session import Session
from remotegpu_offload.config.model import FunctionRule
from remotegpu_offload.functions import mutation

USER = UserModule("user_mutates", FunctionRule("user_mutates.*"))

KINDS = ["tags", "sealed", "slim", "moved", "keys", "kinds", "opened", "packed", "counts", "pair"]
VALUES = (int, float, str, bytes, type(None), datetime.date, decimal.Decimal, frozenset)


def shape(value: Any, known: dict[int, int] | None = None) -> Any:
    """All that an object is, with who is the same as whom; which of equal values it is does not matter."""
    known = {} if known is None else known
    if isinstance(value, VALUES):
        return repr(value)
    if isinstance(value, tuple):
        return tuple(shape(each, known) for each in value)
    if id(value) in known:
        return "same", known[id(value)]
    known[id(value)] = len(known)

    def inside(each: Any) -> Any:
        return shape(each, known)

    content: Any = None
    match value:
        case dict():
            content = [(inside(key), inside(held)) for key, held in value.items()]
        case list() | collections.deque():
            content = [inside(each) for each in value]
        case set():
            content = sorted(value)
        case np.ndarray():
            content = (value.dtype.str, [inside(each) for each in value.tolist()])
        case types.BuiltinFunctionType():
            return "method", value.__name__
        case _ if hasattr(value, "getstate"):
            content = value.getstate()
        case _ if not hasattr(value, "__dict__") and not hasattr(value, "__slots__"):
            content = repr(value)
    names = [*getattr(type(value), "__slots__", ()), *getattr(value, "__dict__", ())]
    return type(value).__qualname__, content, {name: inside(getattr(value, name)) for name in sorted(names)}


def identities(value: Any, found: list[Any] | None = None) -> list[Any]:
    """All the objects that one holds, kept, in an order that is the same for the same structure."""
    found = [] if found is None else found
    if isinstance(value, VALUES) or any(value is each for each in found):
        return found
    if not isinstance(value, tuple):
        found.append(value)
    inner: list[Any] = [getattr(value, name) for name in getattr(type(value), "__slots__", ())]
    inner += getattr(value, "__dict__", {}).values()
    if isinstance(value, dict):
        inner += [each for item in value.items() for each in item]
    elif isinstance(value, (list, tuple, collections.deque)):
        inner += value
    for each in inner:
        identities(each, found)
    return found


@pytest.mark.parametrize("mutates", [("x",), "auto"])
@pytest.mark.parametrize("kind", KINDS)
def test_objects_are_as_the_same_call_here_leaves_them(session: Session, local: Any, kind: str, mutates: Any) -> None:
    expected, given = getattr(local, f"make_{kind}")(), getattr(local, f"make_{kind}")()
    before, wanted = identities(given), identities(expected)
    getattr(local, kind)(expected)
    USER.ruled(session, kind, mutates=mutates)(given)
    assert shape(given) == shape(expected)
    # Those that it held before are what they would be, wherever they are now.
    assert shape(before) == shape(wanted)
    again = USER.ruled(session, kind, mutates=mutates) if kind not in {"tags", "moved"} else None
    if again is not None:
        again(given)
        getattr(local, kind)(expected)
        assert shape(given) == shape(expected)


def test_one_argument_may_come_to_hold_a_part_of_another(session: Session, local: Any) -> None:
    x, y, part = local.Node(1), local.Node(2), local.Node(3)
    y.others.append(part)
    USER.ruled(session, "both", mutates=("x", "y"))(x, y)
    assert x.others == [part] and x.others[0] is part and y.others == [part]


def test_a_result_holds_the_arguments_own_objects(session: Session, local: Any) -> None:
    x = {"n": 1, "inner": [1], "node": local.Node(1)}
    inner, more = USER.ruled(session, "give", mutates=("x",))(x)
    assert x["n"] == 2 and inner is x["inner"] and more["all"][0] is x and more["all"][1].n == 5
    assert more["key"] == {x["node"]: inner}
    assert USER.ruled(session, "look", mutates="auto")(x)[0] is x["node"]


def test_what_cannot_be_changed_in_place_is_an_error_and_nothing_changes(session: Session, local: Any) -> None:
    with pytest.raises(TypeError, match=r"\bFixed\b"):
        USER.ruled(session, "use_up", mutates=("x",))(local.Fixed(3))
    node = local.Node(1)
    with pytest.raises(TypeError, match=r"\bNode\b.*\bOther\b"):
        USER.ruled(session, "turn", mutates=("x",))([node])
    assert type(node) is local.Node
    given: dict[str, Any] = {"a": [0], "b": np.arange(3)}
    with pytest.raises(TypeError, match=r"\(3,\).*\(3, 1\)"):
        USER.ruled(session, "resize", mutates=("x",))(given)
    assert given["a"] == [0] and given["b"].tolist() == [0, 1, 2]


def test_auto_skips_functions_classes_and_modules_only(local: Any) -> None:
    assert not any(map(mutation.may_change, (len, local.keys, local.Node, types, "x", (1, "y"), None, [].append)))
    assert all(
        map(mutation.may_change, (local.Counts(), local.Slim(1, []), [], ({},), collections.deque(), io.BytesIO()))
    )
