"""Functions of `__main__` travel once, and again only when something in them has changed."""

from __future__ import annotations

import gc
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
from offload_local import local_session

from remotegpu_offload.client.session import Session
from remotegpu_offload.config.model import Config, FunctionRule
from remotegpu_offload.functions import client

# More than a call's header, and less than any function.
_CALL = 300


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with local_session(Config(rules=(FunctionRule("__main__.*"),))) as session:
        yield session


class Program:
    """A `__main__` of its own."""

    def __init__(self, session: Session, source: str) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self._session = session
        exec(textwrap.dedent(source), self.names)

    def offloaded(self, name: str = "f") -> Any:
        return client.wrap(self.names[name], FunctionRule(f"__main__.{name}"), self._session)

    def sent(self, call: Any, *arguments: Any) -> tuple[Any, int]:
        """Makes a call, and returns its result and how many bytes it sends."""
        before = self._session.peer.counters.bytes_out
        result = call(*arguments)
        return result, self._session.peer.counters.bytes_out - before


def test_a_function_travels_once(session: Session) -> None:
    program = Program(
        session, "import math\nfactor = 3\ndef g(x):\n    return x * factor\ndef f(x):\n    return math.floor(g(x))\n"
    )
    remote = program.offloaded()
    first, much = program.sent(remote, 1.5)
    second, little = program.sent(remote, 2.5)
    assert (first, second) == (4, 7)
    assert little < _CALL < much


@pytest.mark.parametrize(
    "change",
    [
        "factor = 5",
        "def g(x=1):\n    return x - factor\n",
        "g.__defaults__ = (10,)",
        "g.__code__ = (lambda x=0: x + factor).__code__",
        "del factor",
        "f.__kwdefaults__ = {'more': 100}",
    ],
)
def test_what_has_changed_counts(session: Session, change: str) -> None:
    source = """
        factor = 3
        def g(x=1):
            return x * factor
        def f(*, more=0):
            try:
                return g() + more
            except NameError as error:
                return str(error)
        """
    program = Program(session, source)
    remote = program.offloaded()
    assert remote() == 3
    exec(change, program.names)
    assert remote() == program.names["f"]()
    assert remote() == program.names["f"]()


@pytest.mark.parametrize(
    "source",
    [
        "count = 0\ndef f():\n    global count\n    count += 1\n    return count\n",
        "def f(seen=[]):\n    seen.append(1)\n    return len(seen)\n",
        "seen = []\ndef f():\n    seen.append(1)\n    return len(seen)\n",
        "def f():\n    f.count = getattr(f, 'count', 0) + 1\n    return f.count\n",
        "def make():\n    count = 0\n    def f():\n        nonlocal count\n        count += 1\n        return count\n"
        "    return f\nf = make()\n",
        "class State:\n    count = 0\ndef f():\n    State.count += 1\n    return State.count\n",
        "def g(seen={}):\n    seen[len(seen)] = 1\n    return len(seen)\ndef f():\n    return g()\n",
    ],
    ids=["global", "default", "list", "attribute", "nonlocal", "class", "inner default"],
)
def test_what_a_call_changes_in_the_acceptor_is_not_found_by_the_next(session: Session, source: str) -> None:
    """A call begins with what the program has, as if the function had travelled again."""
    remote = Program(session, source).offloaded()
    assert [remote(), remote(), remote()] == [1, 1, 1]


def test_an_error_does_not_count_as_sent(session: Session) -> None:
    program = Program(session, "def f(x):\n    return 1 / x\n")
    remote = program.offloaded()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            remote(0)
    assert [remote(2), remote(4)] == [0.5, 0.25]


# Its collection meets what tests before it have left.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_deleted_functions_are_forgotten_in_the_acceptor(session: Session) -> None:
    kept = Program(session, "def f():\n    return 0\n").offloaded()
    kept()
    gc.collect()
    sent = client.of(session)._sent
    before = len(sent._seen)
    for number in range(10):
        remote = Program(session, f"def f():\n    return {number}\n").offloaded()
        assert (remote(), remote()) == (number, number)
        del remote
        gc.collect()
    assert len(sent.gone()) <= 1
    assert len(sent._seen) <= before + 1


def test_an_acceptor_that_lacks_it_gets_it_again(session: Session) -> None:
    program = Program(session, "def f(x):\n    return x + 1\n")
    remote = program.offloaded()
    assert remote(1) == 2
    # As if the session had moved between two calls.
    client.of(session)._sent._gone.append(client.of(session).codec.identify(program.names["f"]))
    assert program.sent(remote, 2)[0] == 3
    result, little = program.sent(remote, 3)
    assert result == 4
    assert little < _CALL
