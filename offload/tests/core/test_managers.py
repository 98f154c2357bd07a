"""Context managers, caches and patterns of functions that run in an acceptor: as in the local run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from offload_modules import UserModule, held

from remotegpu_offload.client.session import Session
from remotegpu_offload.config.model import FunctionRule
from remotegpu_offload.functions.proxies import RemoteManager
from remotegpu_offload.objects.codec import Codec, CrossingError, RefusedError

USER = UserModule("user_unusual", FunctionRule("user_unusual.*"))


def said(module: Any) -> list[str]:
    """Returns the notes of the functions `opened` and `slowly`, and how each `with` ended."""
    found = []

    def attempt(error: BaseException | None, **options: Any) -> str:
        try:
            with module.opened("x", **options) as value:
                found.append(value["name"])
                if error is not None:
                    raise error
        except Exception as raised:
            # An exception that was raised here and has passed through is the same object.
            return f"{type(raised).__name__} {raised} {raised is error} {type(raised.__cause__).__name__}"
        return "nothing"

    for error in (None, KeyError("a"), OSError("other")):
        for swallow in (True, False, None):
            found += [attempt(error, swallow=swallow), *module.told()]
    return found


def test_context_managers_of_functions_enter_and_leave_in_the_acceptor(
    session: Session, remote: ModuleType, local: ModuleType
) -> None:
    with remote.opened("here") as value:
        assert value["pid"] not in (0, os.getpid())
        assert remote.told() == ["enter here"]
    assert remote.told() == ["exit here"]
    ours, theirs = said(local), said(remote)
    # An exception that a call raises has the acceptor's traceback as its cause.
    assert [each.replace("RemoteTraceback", "LookupError") for each in theirs if "ValueError" not in each] == [
        each for each in ours if "ValueError" not in each
    ]
    assert [each.split()[:3] for each in theirs if "ValueError" in each] == [
        each.split()[:3] for each in ours if "ValueError" in each
    ]
    del value
    assert held(session) == (0, 0, 0)


def test_a_context_manager_is_a_decorator(remote: ModuleType, local: ModuleType) -> None:
    for module in (remote, local):

        @module.opened("around")  # type: ignore[untyped-decorator]
        def double(x: int, module: Any = module) -> tuple[int, list[str]]:
            return 2 * x, module.told()

        assert [double(2), double(3)] == [(4, ["enter around"]), (6, ["exit around", "enter around"])]
        assert module.told() == ["exit around"]


def test_a_context_manager_that_is_dropped_inside_ends_in_the_acceptor(session: Session, remote: ModuleType) -> None:
    manager = remote.opened("dropped")
    manager.__enter__()
    del manager
    assert held(session) == (0, 0, 0)
    assert remote.told() == ["enter dropped", "exit dropped"]


def test_the_programs_own_are_entered_here(session: Session, remote: ModuleType) -> None:
    noted: list[Any] = []

    @contextlib.contextmanager
    def mine() -> Iterator[int]:
        try:
            yield os.getpid()
        except KeyError as error:
            noted.append(error)
            raise
        finally:
            noted.append("left")

    assert remote.within(mine()) == os.getpid() and noted == ["left"]
    assert held(session) == (0, 0, 0)
    error = KeyError("mine")
    with pytest.raises(KeyError) as raised:
        remote.within(mine(), error)
    assert raised.value.args == ("mine",) and isinstance(noted[1], KeyError) and noted[2] == "left"


def test_asynchronous_context_managers(remote: ModuleType, local: ModuleType) -> None:
    async def main(module: Any) -> list[Any]:
        async with module.slowly("a") as value:
            found = [value, *module.told()]
        with pytest.raises(OSError, match="through"):
            async with module.slowly("b"):
                raise OSError("through")
        return [*found, *module.told()]

    assert asyncio.run(main(remote)) == asyncio.run(main(local)) == ["A", "enter a", "exit a", "enter b", "exit b"]


def test_an_object_that_stays_in_the_acceptor_is_a_context_manager_if_its_class_is(
    session: Session, remote: ModuleType
) -> None:
    door = USER.ruled(session, "door", returns="ref")()
    with door as entered:
        assert entered is door and remote.is_open(door)
    assert not remote.is_open(door)
    with door:
        raise KeyError("swallowed there")
    with pytest.raises(OSError, match="through"), door:
        raise OSError("through")
    assert isinstance(door, RemoteManager) and not callable(door)
    plain = USER.ruled(session, "pattern", returns="ref")("a")
    with pytest.raises(TypeError, match="context manager protocol"), plain:
        pass


def test_cache_methods_run_in_the_acceptor(remote: ModuleType, local: ModuleType) -> None:
    for module in (remote, local):
        assert [module.cached(n) for n in (1, 2, 1, 3, 4)] == [2, 4, 2, 6, 8]
        info = module.cached.cache_info()
        assert (info.hits, info.misses, info.maxsize, info.currsize) == (1, 4, 3, 3)
        assert module.cached.cache_parameters() == {"maxsize": 3, "typed": False}
        assert module.cached.cache_clear() is None
        assert repr(module.cached.cache_info()) == "CacheInfo(hits=0, misses=0, maxsize=3, currsize=0)"


def test_patterns_are_results(remote: ModuleType) -> None:
    for text, flags in (("a+(?P<n>b)", re.IGNORECASE), (b"[\x00-\xff]", 0), ("x # y", re.VERBOSE | re.ASCII)):
        assert remote.pattern(text, flags) == re.compile(text, flags)


@pytest.mark.parametrize(
    "arguments",
    [(1,), (["a"],), ("a", "1"), ("a", True), ("a" * (2 << 20),), ("(" * 100_000,), ("(?P<",), ("a", 0, print)],
    ids=str,
)
def test_invalid_patterns_are_refused(arguments: Any) -> None:
    class Forged:
        def __reduce__(self) -> Any:
            return getattr(re, "_compile"), arguments  # noqa: B009 - typeshed does not know it

    with pytest.raises(RefusedError):
        Codec(client=True, trusted=False).loads({"v": 1}, [pickle.dumps(Forged(), 5)])


def test_a_pattern_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    class Forged:
        def __reduce__(self) -> Any:
            return getattr(re, "_compile"), ("a|b", re.DEBUG.value)  # noqa: B009

    found = Codec(client=True, trusted=False).loads({"v": 1}, [pickle.dumps(Forged(), 5)])
    assert found.pattern == "a|b" and capfd.readouterr() == ("", "")


def test_what_cannot_go_by_ref_says_what_to_do(session: Session, remote: ModuleType) -> None:
    identity = USER.ruled(session, "within", args={"manager": "ref"})
    with pytest.raises(CrossingError, match=r"\bbuiltins\.list\b.*`ref`.*`mutates`") as refused:
        identity([1])
    assert refused.value.path == "argument 0 (manager)"
    with pytest.raises(CrossingError, match=r"\bbuiltins\.dict\b.*`ref`"):
        identity({})
    # Whatever is its own copy can.
    sorted_there = USER.ruled(session, "pattern", args={"text": "ref", "flags": "ref"})
    assert sorted_there("a", 2) == re.compile("a", 2)
