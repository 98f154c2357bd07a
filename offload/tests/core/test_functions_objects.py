"""Functions in an acceptor that are given, or give, what stays where it is: callbacks, generators, files, handles."""

from __future__ import annotations

import functools
import io
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from offload_modules import Trips, UserModule, held, session_beside

from remotegpu_offload.client.session import Session
from remotegpu_offload.config.model import FunctionRule
from remotegpu_offload.functions import client
from remotegpu_offload.functions.errors import TooDeepError
from remotegpu_offload.functions.proxies import RemoteFunction, RemoteIterator, RemoteObject
from remotegpu_offload.objects.codec import CrossingError, UnknownObjectError

USER = UserModule("user_steps", FunctionRule("user_steps.*"))


def test_callbacks_run_in_the_program(session: Session, remote: Any) -> None:
    seen: list[tuple[int, int, int]] = []

    def note(x: int) -> int:
        seen.append((os.getpid(), threading.get_ident(), x))
        return x * 10

    trips = Trips(session)
    assert remote.each([1, 2], note) == [10, 20]
    assert seen == [(os.getpid(), threading.get_ident(), 1), (os.getpid(), threading.get_ident(), 2)]
    assert trips.count == 3
    out: list[int] = []
    remote.each([3, 4], out.append)
    assert out == [3, 4]
    assert remote.apply(functools.partial(note, 5)) == 50
    assert remote.apply([note, {}][0], 1) == 10
    # A function of a module is found there by its name.
    assert remote.apply(os.getpid) != os.getpid()
    assert remote.apply(np.sum, np.ones(3)) == 3
    held_now = held(session)
    assert held_now == (0, 0, 0)


def test_what_a_callback_raises_comes_back_as_itself(session: Session, remote: Any) -> None:
    class OwnError(Exception):
        pass

    def fail() -> None:
        raise OwnError("mine", 3)

    with pytest.raises(OwnError) as raised:
        remote.apply(fail)
    assert raised.value.args == ("mine", 3) and raised.traceback[-1].name == "fail"
    # Also where it has passed through several calls.
    with pytest.raises(OwnError):
        remote.apply(lambda: remote.apply(lambda: remote.apply(fail)))


def test_calls_nest_and_end_with_a_sentence_when_too_deep(session: Session, remote: Any) -> None:
    def down(n: int) -> int:
        return n if n == 0 else 1 + int(remote.apply(down, n - 1))

    assert remote.apply(down, 12) == 12
    with pytest.raises(TooDeepError, match=r"\b40\b"):
        remote.apply(down, 500)
    # The session still works.
    assert remote.apply(down, 3) == 3


def test_generators_are_pulled_in_growing_parts(session: Session, remote: Any) -> None:
    trips = Trips(session)
    found = remote.squares(200)
    assert isinstance(found, RemoteIterator)
    assert list(found) == [n * n for n in range(200)]
    assert trips.count < 40
    assert [float(array[0]) for array in remote.same_array(20)] == list(range(20))
    failing = remote.fails_in_the_middle()
    assert [next(failing), next(failing)] == [1, 2]
    with pytest.raises(KeyError, match="three"):
        next(failing)
    with pytest.raises(StopIteration):
        next(failing)


def test_a_generator_takes_values_and_ends(session: Session, remote: Any) -> None:
    generator = remote.echo()
    assert next(generator) == [] and generator.send(1) == [1] and generator.send("b") == [1, "b"]
    with pytest.raises(StopIteration) as ended:
        next(generator)
    assert ended.value.value == "end"
    del ended  # its traceback holds the generator
    abandoned = remote.squares(10_000)
    assert next(abandoned) == 0
    abandoned.close()
    assert list(abandoned) == []
    del generator, abandoned
    assert held(session) == (0, 0, 0)


def test_the_programs_own_generators_are_read_by_the_acceptor(session: Session, remote: Any) -> None:
    ended = []

    def numbers() -> Iterator[int]:
        try:
            yield from range(300)
        finally:
            ended.append(True)

    trips = Trips(session)
    assert remote.total(numbers()) == 44850 and ended == [True] and trips.count < 40
    assert remote.total(map(str.__len__, ["a", "bc"])) == 3
    assert held(session) == (0, 0, 0)


def test_open_files_are_read_and_written_here(session: Session, remote: Any, tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    with path.open("w") as file:
        remote.write_to(file, "a\n")
        file.write("b\n")
        remote.write_to(file, "c\n")
    assert path.read_text() == "a\nb\nc\n"
    with path.open() as file:
        assert file.readline() == "a\n"
        assert remote.read_lines(file) == ["b", "c"]
    assert remote.read_lines(io.StringIO("x\ny\n")) == ["x", "y"]


def test_what_a_call_returns_may_stay_in_the_acceptor(session: Session, local: Any) -> None:
    make = USER.ruled(session, "identity", returns="ref")
    handle = make({"n": 1})
    assert isinstance(handle, RemoteObject) and repr(handle) == "<dict of the other end>"
    keep = USER.ruled(session, "keep")
    assert keep(handle, 5) == 6 and keep(handle, 5) == 11
    assert handle.fetch() == {"n": 11}
    assert held(session) == (1, 1, 0)
    del handle
    assert held(session) == (0, 0, 0)


def test_an_argument_by_ref_stays_in_the_acceptor_from_its_first_call_on(session: Session, local: Any) -> None:
    weigh = USER.ruled(session, "weigh", args={"model": "ref"})
    model = local.Result(1.0)
    assert [weigh(model), weigh(model), weigh(model=model)] == [1, 2, 3] and model.step == 0
    written = USER.ruled(session, "weigh", args={"model": "ref"}, mutates=("model",))
    assert written(model) == 4 and model.step == 4
    assert held(session)[0] == 1
    del model
    weigh(local.Result(1.0))
    assert held(session) == (0, 0, 0)
    with pytest.raises(CrossingError, match=r"\bbuiltins\.list\b.*`ref`"):
        weigh([1])


def test_results_that_cannot_travel(session: Session, remote: Any) -> None:
    adder = remote.make_adder(3)
    assert isinstance(adder, RemoteFunction) and adder(4) == 7
    assert remote.apply(adder, 1) == 4
    with pytest.raises(CrossingError, match=r"\b_thread\.lock\b"):
        remote.make_lock()
    assert isinstance(USER.ruled(session, "make_lock", returns="auto")(), RemoteObject)
    assert USER.ruled(session, "identity", returns="auto")(5) == 5


def test_a_handle_is_good_only_at_its_own_acceptor(session: Session, local: Any) -> None:
    handle = USER.ruled(session, "identity", returns="ref")([1])
    with session_beside(session) as other, pytest.raises(CrossingError, match=re.escape(repr(handle))):
        USER.ruled(other, "identity")(handle)


def test_a_hundred_thousand_calls_leave_nothing_behind(session: Session, remote: Any) -> None:
    """In a loop there, so that it is quick: each calls back here, with a handle that lives for that call."""
    count = 0

    def note(x: int) -> None:
        nonlocal count
        count += 1

    make = USER.ruled(session, "identity", returns="ref")
    for _ in range(300):
        make([1])
    for n in range(20):
        remote.each(range(100), note)
        remote.total(iter([n]))
    assert count == 2000
    identity = remote.identity
    codec = client.of(session).codec
    # Sent and let go without a message each, as many as there are.
    for _ in range(1000):
        packed = codec.dumps([iter([]) for _ in range(100)])
        codec.unsent(packed)
    identity(1)
    assert held(session) == (0, 0, 0) and len(codec.outgoing) == 0 and len(codec.residents) == 0


def test_unknown_handles_are_refused_by_the_acceptor(session: Session, remote: Any) -> None:
    link = client.of(session).link
    with pytest.raises(UnknownObjectError, match="12345"):
        link.ask({"o": 12345, "m": "__call__"}, ((), {}))
