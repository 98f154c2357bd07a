"""Signals held back: none is lost, none comes in between, and the program's handlers stay the program's."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from remotegpu_offload.wire.interrupts import Allowed, Held, pending

USR1, INT = signal.SIGUSR1, signal.SIGINT


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """Yields the signals that the program's own handler of SIGUSR1 received."""
    numbers: list[int] = []
    before = signal.signal(USR1, lambda number, _frame: numbers.append(number))
    yield numbers
    signal.signal(USR1, before)


def test_ctrl_c_is_raised_at_the_end() -> None:
    done = []

    def work() -> None:
        with Held():
            signal.raise_signal(INT)
            assert pending()
            done.append(1)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done
    assert signal.getsignal(INT) is signal.default_int_handler


def test_the_third_ctrl_c_is_raised_at_once() -> None:
    def work() -> None:
        with Held() as held:
            signal.raise_signal(INT)
            signal.raise_signal(INT)
            signal.raise_signal(INT)
            held.forget()

    with pytest.raises(KeyboardInterrupt):
        work()
    assert not pending()


def test_a_handler_of_the_program_runs_at_the_end(heard: list[int]) -> None:
    with Held():
        with Held():
            signal.raise_signal(USR1)
        assert not heard
    assert heard == [USR1]


def test_it_runs_before_the_programs_own_code_is_called(heard: list[int]) -> None:
    with Held():
        with Held():
            signal.raise_signal(USR1)
            with Allowed():
                assert heard == [USR1]
                signal.raise_signal(USR1)
                assert heard == [USR1, USR1]
            signal.raise_signal(USR1)
        assert heard == [USR1, USR1]
    assert heard == [USR1, USR1, USR1]


def test_it_runs_where_nothing_is_in_between(heard: list[int]) -> None:
    with Held() as held:
        signal.raise_signal(USR1)
        held.deliver()
        assert heard == [USR1]
    assert heard == [USR1]


def test_each_signal_is_handled_although_the_handler_of_another_raises(heard: list[int]) -> None:
    def refuse(number: int, _frame: object) -> None:
        raise ValueError(number)

    def work(*, allowed: bool) -> None:
        with Held():
            signal.raise_signal(signal.SIGALRM)
            signal.raise_signal(USR1)
            if allowed:
                with Allowed():
                    raise AssertionError("its code was called")

    before = signal.signal(signal.SIGALRM, refuse)
    try:
        with pytest.raises(ValueError, match="14"):
            work(allowed=False)
        assert heard == [USR1]
        with pytest.raises(ValueError, match="14"):
            work(allowed=True)
        assert heard == [USR1, USR1]
        assert signal.getsignal(signal.SIGALRM) is refuse
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_handler_that_the_program_sets_meanwhile_stays() -> None:
    def handler(_number: int, _frame: object) -> None:
        raise AssertionError

    before = signal.getsignal(USR1)
    try:
        signal.signal(USR1, lambda *_: None)
        with Held(), Held(), Allowed():
            signal.signal(USR1, handler)
        assert signal.getsignal(USR1) is handler
    finally:
        signal.signal(USR1, before)


def test_signals_without_a_handler_are_left_alone() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Held():
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
