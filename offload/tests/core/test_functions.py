"""Functions that rules name run in an acceptor, and the program does not see it: compared with the same call here."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import signal
import threading
from typing import Any

import numpy as np
import pandas as pd
import pytest
from offload_modules import Trips, UserModule, session_beside

from remotegpu_offload.client.session import Session
from remotegpu_offload.config.model import FunctionRule
from remotegpu_offload.functions import client
from remotegpu_offload.functions.errors import RemoteError, RemoteTraceback
from remotegpu_offload.objects import pages
from remotegpu_offload.objects.codec import CrossingError

USER = UserModule("user_steps", FunctionRule("user_steps.*"))


def test_a_call_runs_in_the_acceptor_in_one_round_trip(session: Session, remote: Any) -> None:
    assert remote.where() != os.getpid()
    trips = Trips(session)
    assert remote.add(1, 3, 4, scale=2, more=5) == 26
    assert trips.count == 1
    assert remote.add.__doc__ == "Add them." and inspect.signature(remote.add) == inspect.signature(
        remote.add.__wrapped__
    )
    assert remote.add.__name__ == "add"


def test_large_arguments_travel_with_the_call_and_only_once(session: Session, remote: Any) -> None:
    data = np.random.default_rng(0).random(1 << 18)
    trips = Trips(session)
    sent = session.peer.counters.bytes_out
    assert remote.total(data) == pytest.approx(data.sum())
    assert trips.count == 1
    first = session.peer.counters.bytes_out - sent
    assert remote.size(data) == 1 << 18
    assert first > data.nbytes and session.peer.counters.bytes_out - sent - first < 2000


def test_huge_arguments_are_fetched_in_parts(session: Session, remote: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "CARRIED", 2 << 20)
    data = os.urandom(20 << 20)
    trips = Trips(session)
    assert remote.size(data) == 20 << 20
    # The call, and the rest in one request: it is the acceptor's own limit that cuts it.
    assert trips.count == 2


def test_values_of_the_programs_classes_come_back(session: Session, remote: Any) -> None:
    found = remote.result(1.5)
    assert found == remote.Result(1.5, 1) and type(found) is remote.Result


def test_arguments_are_copies_unless_the_rule_says_that_they_change(session: Session, remote: Any) -> None:
    array = np.zeros(3)
    assert remote.fill(array).tolist() == [7, 7, 7] and array.sum() == 0


@pytest.mark.parametrize("mutates", [("array",), "auto"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: np.zeros(5),
        lambda: np.zeros((3, 4), order="F"),
        lambda: np.zeros((200, 1000)),
        lambda: np.zeros((200, 1000), order="F"),
        lambda: np.zeros((400, 500))[::2, 1:],
        lambda: np.zeros(10)[::-3],
        lambda: np.zeros(4, [("a", "i4"), ("b", "f8")]),
        lambda: np.zeros(4, [("a", "i4"), ("b", "f8")])["b"],
        lambda: np.array([None, "x"], object),
        lambda: np.zeros(()),
    ],
    ids=[str(number) for number in range(10)],
)
def test_arrays_are_changed_in_place(session: Session, local: Any, mutates: Any, make: Any) -> None:
    array, expected = make(), make()
    local.fill(expected)
    given = USER.ruled(session, "fill", mutates=mutates)(array)
    assert given is array
    np.testing.assert_array_equal(array, expected)
    if array.base is not None:
        np.testing.assert_array_equal(array.base, expected.base)


def test_only_changed_parts_of_an_array_come_back(session: Session, remote: Any) -> None:
    array = np.random.default_rng(0).random((3, 1 << 19))
    before, second = session.peer.counters.bytes_in, array[1:].copy()
    both = USER.ruled(session, "both", mutates="auto")
    assert both(array[0], 3 * [1]) == 1.0
    assert array[0, 0] == 5 and (array[1:] == second).all()
    array[0, 0] = 0
    both(array.reshape(-1), [1])
    assert array[0, 0] == 5 and (array[1:] == second).all()
    # Only the first of its three segments.
    assert session.peer.counters.bytes_in - before < 2.2 * pages.SEGMENT


def test_containers_frames_and_instances_are_changed_in_place(session: Session, local: Any) -> None:
    inner: dict[str, Any] = {}
    things, extra = ["a"], {"inner": inner, "gone": 1}
    found = USER.ruled(session, "change", mutates="auto")(things, extra=extra)
    assert things == ["a", 1] and found is things
    assert extra == {"inner": {"deep": [1]}, "seen": "a"} and extra["inner"] is inner
    state = local.Result(8.0)
    USER.ruled(session, "advance", mutates=("state",))(state)
    assert state == local.Result(4.0, 1)
    frame = pd.DataFrame({"x": [1, 2]})
    USER.ruled(session, "add_column", mutates="auto")(frame)
    pd.testing.assert_frame_equal(frame, pd.DataFrame({"x": [1, 2], "y": [2, 4]}))


def test_exceptions_are_of_the_same_type_and_show_where_they_were_raised(session: Session, remote: Any) -> None:
    with pytest.raises(remote.StepError) as raised:
        remote.boom(3)
    assert raised.value.args == (3,) and raised.value.step == 3 and raised.value.why == "because"
    assert isinstance(raised.value.__cause__, RemoteTraceback)
    shown = str(raised.value.__cause__)
    assert 'raise StepError(step, why="because")' in shown and str(USER.path) in shown and "remotegpu" not in shown
    assert any("acceptor local0" in note for note in raised.value.__notes__)
    with pytest.raises(ValueError, match="outer") as chained:
        remote.boom_within(1)
    assert "direct cause" in str(chained.value.__cause__) and "because" in str(chained.value.__cause__)
    with pytest.raises(RemoteError) as hidden:
        remote.hard()
    assert hidden.value.type_name == "user_steps.hard.<locals>.HiddenError"
    with pytest.raises(TypeError, match=r"\badd\b"):
        remote.add()


def test_functions_of_main_and_of_functions_travel_by_value(session: Session, remote: Any) -> None:
    base, offset = 100, np.ones(3)

    def step(x: int, depth: int = 2) -> Any:
        nonlocal base
        base += 1
        return (os.getpid(), x + base + depth + float(offset.sum()))

    wrapped = client.wrap(step, FunctionRule("__main__.step"), session)
    pid, value = wrapped(1)
    # Its globals and closure are copies of what they were when it was called.
    assert pid != os.getpid() and value == 1 + 101 + 2 + 3 and base == 100
    base, offset = 200, np.zeros(3)
    assert wrapped(1)[1] == 1 + 201 + 2


def test_a_recursive_function_by_value_calls_itself_in_the_acceptor(session: Session) -> None:
    def fibonacci(n: int) -> int:
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    fibonacci = client.wrap(fibonacci, FunctionRule("__main__.fibonacci"), session)
    trips = Trips(session)
    assert fibonacci(12) == 144 and trips.count == 1


def test_logging_and_warnings_are_the_programs_own(
    session: Session, remote: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "user_steps"), pytest.warns(UserWarning, match="warned hello"):
        assert remote.speak("hello") == "hello"
    records = [(record.name, record.levelname, record.getMessage(), record.funcName) for record in caplog.records]
    assert records == [("user_steps", "INFO", "logged hello", "speak")]
    # As errors they are raised here, by the filters here.
    with pytest.raises(UserWarning, match="warned again"):
        remote.speak("again")
    with caplog.at_level(logging.WARNING, "user_steps"), pytest.warns(UserWarning, match="warned quiet"):
        remote.speak("quiet")
    assert "quiet" not in caplog.text


def test_an_unpicklable_argument_is_named(session: Session, remote: Any) -> None:
    with pytest.raises(CrossingError) as nested:
        remote.change(things={"a": [1, threading.Lock()]})
    assert nested.value.path == "argument things: ['a'][1]"
    with pytest.raises(CrossingError) as plain:
        remote.add(1, threading.Lock())
    assert plain.value.path == "argument 1 (b)"


def test_threads_call_at_the_same_time(session: Session, remote: Any) -> None:
    together = threading.Barrier(3, timeout=60)
    found: dict[int, int] = {}

    def work(n: int) -> None:
        found[n] = remote.apply(lambda: (together.wait(), n * n)[1])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {0: 0, 1: 1, 2: 4}


def test_an_interrupt_stops_the_call_in_the_acceptor(session: Session, remote: Any) -> None:
    def press() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.1, press)
    with pytest.raises(KeyboardInterrupt):
        # When the call is under way, wherever it is then.
        remote.spin(timer.start)
    timer.join()
    assert remote.add(1) == 3


def test_asynchronous_functions_do_not_hold_up_the_loop(session: Session, remote: Any) -> None:
    async def main() -> list[int]:
        return list(await asyncio.gather(*(remote.later(n) for n in range(3))))

    assert asyncio.run(main()) == [1, 2, 3]


def test_methods_of_a_class_can_be_named(session: Session, local: Any) -> None:
    rules = [FunctionRule(f"user_steps.Tool.{name}") for name in ("times", "static", "of_class")]
    assert client.install(local, USER.under(*rules), session) == [rule.pattern for rule in rules]
    tool = local.Tool(4)
    assert tool.times(3) == 12 and inspect.ismethod(tool.times)
    for pid, value in (local.Tool.static(6), tool.of_class(2)):
        assert pid != os.getpid() and value == 6


def test_module_globals_of_the_acceptor_are_its_own(session: Session, remote: Any) -> None:
    first = remote.count_calls()
    assert remote.count_calls() == first + 1 and remote.calls == 0


def test_a_glob_means_what_a_module_defines(session: Session, local: Any) -> None:
    replaced = client.install(local, USER.under(FunctionRule("user_steps.m*"), FunctionRule("user_steps.np")), session)
    assert replaced == ["user_steps.make_adder", "user_steps.make_lock"]
    assert client.install(local, USER.under(FunctionRule("user_steps.m*")), session) == []


def test_views_of_one_array_share_memory_in_the_acceptor_too(session: Session, local: Any) -> None:
    base = np.zeros(10)
    expected = local.both(base, base[:4].copy())
    assert expected == 0.0
    assert local.both(base, base[:4]) == 5.0
    base[:] = 0
    assert USER.ruled(session, "both", mutates="auto")(base, base[:4]) == 5.0
    assert base[0] == 5.0


def test_a_lost_acceptor_names_itself(session: Session) -> None:
    from remotegpu_offload.wire.errors import LostError

    with session_beside(session) as other:
        USER.load()
        kill = client.wrap(os._exit, FunctionRule("os._exit"), other)
        with pytest.raises(LostError, match=r"\blocal0\b"):
            kill(3)
