"""A row of the table: a sentence of the documentation in our words, its check, and the drivers that break it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from documented.driver import NON_BLOCKING, Broken, Library, Machine, out, word

KINDS: Final = ("errors", "null", "lifetimes", "order", "synchronous", "threads")


@dataclass(frozen=True)
class Row:
    kind: str
    function: str
    section: str
    says: str
    check: Callable[[Machine], None]
    # Functions of a driver that breaks this rule and no other: with them the check has to fail.
    broken: Mapping[str, Broken]
    # Why it is otherwise, where it is: by the software GPU (native), on a share, by NVIDIA's driver (driver).
    otherwise: Mapping[str, str]
    # Runs in a process that no other row shares.
    alone: bool = False

    @property
    def name(self) -> str:
        return f"{self.function}: {self.says}"


class Table:
    """Collects the rows of a kind."""

    def __init__(self, kind: str) -> None:
        assert kind in KINDS
        self.kind = kind
        self.rows: list[Row] = []

    def row(
        self,
        function: str,
        section: str,
        says: str,
        broken: Mapping[str, Broken],
        otherwise: Mapping[str, str] | None = None,
        alone: bool = False,
    ) -> Callable[[Callable[[Machine], None]], Callable[[Machine], None]]:
        """Takes the function below it as the row's check."""

        def take(check: Callable[[Machine], None]) -> Callable[[Machine], None]:
            self.rows.append(Row(self.kind, function, section, says, check, broken, otherwise or {}, alone))
            return check

        return take

    def answers(
        self,
        code: int | tuple[int, ...],
        function: str,
        section: str,
        says: str,
        arguments: Callable[[Machine], tuple[Any, ...]],
        otherwise: Mapping[str, str] | None = None,
    ) -> None:
        """A row that calls its function once; the broken driver has another answer."""
        codes = code if isinstance(code, tuple) else (code,)

        def check(m: Machine) -> None:
            given = arguments(m)
            found = getattr(m.nvml if function.startswith("nvml") else m.cuda, function)(*given)
            assert found in codes, f"{function} answers {found}, not {codes}"

        broken = {function: always(1 if 0 in codes else 0)}
        self.rows.append(Row(self.kind, function, section, says, check, broken, otherwise or {}))


def _call(real: Library, name: str, *arguments: Any) -> int:
    code: int = getattr(real, name)(*arguments)
    return code


def always(code: int) -> Broken:
    """Replaces a function: does nothing, and returns `code`."""
    return lambda _real, *_arguments: code


def first_of(name: str, value: int) -> Broken:
    """Replaces a function: does its work, and stores another value at its first parameter."""

    def instead(real: Library, place: Any, *arguments: Any) -> int:
        code: int = getattr(real, name)(place, *arguments)
        if place is not None:
            place._obj.value = value
        return code

    return instead


def tells(values: Iterator[int], at: int) -> Broken:
    """Replaces a function: does nothing, and stores the next of these values at the parameter in this place."""

    def instead(_real: Library, *arguments: Any) -> int:
        arguments[at]._obj.value = next(values)
        return 0

    return instead


def early(name: str, stream_at: int) -> Broken:
    """Replaces a function of a stream: does its work at once, before the stream's earlier work."""

    def instead(real: Library, *arguments: Any) -> int:
        other = word()
        assert real.cuStreamCreate(out(other), NON_BLOCKING) == 0
        given = [*arguments]
        given[stream_at] = other.value
        code: int = getattr(real, name)(*given)
        real.cuStreamSynchronize(other.value)
        return code

    return instead


def late(name: str) -> Broken:
    """Replaces a function: returns only when the context has no work left."""

    def instead(real: Library, *arguments: Any) -> int:
        code: int = getattr(real, name)(*arguments)
        real.cuCtxSynchronize()
        return code

    return instead


def late_at(name: str) -> Broken:
    """Like `late`, for a function that destroys something: it waits first."""

    def instead(real: Library, *arguments: Any) -> int:
        real.cuCtxSynchronize()
        return _call(real, name, *arguments)

    return instead


def twice(name: str) -> Broken:
    """Replaces a function: calls it twice."""

    def instead(real: Library, *arguments: Any) -> int:
        getattr(real, name)(*arguments)
        return _call(real, name, *arguments)

    return instead


def remembered(name: str) -> Broken:
    """Replaces a function that makes something: each call returns the result of the first one."""
    made: list[tuple[int, int]] = []

    def instead(real: Library, place: Any, *arguments: Any) -> int:
        if not made:
            made.append((getattr(real, name)(place, *arguments), place._obj.value))
        code, place._obj.value = made[0]
        return code

    return instead


def only_first(name: str) -> Broken:
    """Replaces a function: does its work once for each first argument, and later only reports success."""
    seen: set[int] = set()

    def instead(real: Library, first: int, *arguments: Any) -> int:
        if first in seen:
            return 0
        seen.add(first)
        return _call(real, name, first, *arguments)

    return instead


def swapped(name: str) -> Broken:
    """Replaces a function of a stream: makes every second call before the first."""
    kept: list[tuple[Any, ...]] = []

    def instead(real: Library, *arguments: Any) -> int:
        kept.append(arguments)
        if len(kept) < 2:
            return 0
        codes = [_call(real, name, *each) for each in reversed(kept)]
        kept.clear()
        return max(codes)

    return instead


def unawaited(name: str) -> Broken:
    """Replaces a function that waits: calls it in another thread, and does not wait for that."""

    def instead(real: Library, *arguments: Any) -> int:
        context = word()
        real.cuCtxGetCurrent(out(context))

        def work() -> None:
            real.cuCtxSetCurrent(context.value)
            getattr(real, name)(*arguments)

        threading.Thread(target=work).start()
        return 0

    return instead
