"""Measures the time of a program's functions, and the sizes of arguments and results, to find candidates for rules."""

import builtins
import contextlib
import importlib.util
import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from remotegpu_offload.explain.changes import COMPARED, TooLargeError, Watch, written

# Sizes are measured in the first calls, and in each call whose number is a power of two.
_SIZED_CALLS: Final = 3
_DECORATORS: Final = 4
_DEVICE: Final = f"{Path(__file__).parents[1] / 'torch'}/"
_ONCE_PER_YIELD: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@dataclass(slots=True)
class Calls:
    """All calls of one function. Seconds include called functions; in a recursion only the outermost call counts."""

    module: str
    qualname: str
    calls: int = 0
    seconds: float = 0.0
    argument_bytes: int = 0  # of the largest call that was measured
    result_bytes: int = 0
    obstacle: str = ""  # why the function cannot run elsewhere; "" if no reason was found
    within: dict[str, float] = field(default_factory=dict)  # seconds per calling function of this table
    library: bool = False  # True for a library's function that the user's code calls
    mutates: list[str] = field(default_factory=list)  # changed arguments; "auto": some of them have no name
    caution: str = ""  # why the function might behave differently elsewhere; "" if no reason was found
    globals: dict[str, str] = field(default_factory=dict)  # states after the last measured call
    tensor_seconds: float = 0.0  # part of `seconds` in operations on tensors that a torch rule moves

    @property
    def name(self) -> str:
        return f"{self.module}.{self.qualname}"


@dataclass(slots=True)
class _Open:
    frame: FrameType
    calls: Calls
    since: float
    watch: Watch | None
    outermost: bool
    tensors: float


class _Thread(threading.local):
    def __init__(self) -> None:
        self.open: list[_Open] = []
        self.busy = False
        self.paused = 0.0
        # The outermost frame of the remote torch device that this thread runs, and the time when it began.
        self.device: FrameType | None = None
        self.since = 0.0
        self.tensors = 0.0


class Profile:
    """Counts calls while it is entered.

    `is_user` recognises the user's own source files. Functions of libraries count where the user's code calls them,
    unless `ignored` is true for their module's name.
    """

    def __init__(self, is_user: Callable[[str], bool], ignored: Callable[[str], bool]) -> None:
        self.table: dict[str, Calls] = {}
        self._is_user = is_user
        self._ignored = ignored
        self._user: dict[CodeType, bool] = {}
        self._of_device: dict[CodeType, bool] = {}
        self._thread = _Thread()
        self._import = builtins.__import__

    def __enter__(self) -> "Profile":
        self._import, builtins.__import__ = builtins.__import__, self._importing
        threading.setprofile(self._event)
        sys.setprofile(self._event)
        return self

    @property
    def seconds(self) -> float:
        """Seconds in functions of the table: the duration of the run without its imports."""
        return sum(calls.within.get("", 0.0) for calls in self.table.values())

    @property
    def paused(self) -> float:
        """Seconds that the measuring itself took in this thread."""
        return self._thread.paused

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)
        builtins.__import__ = self._import

    def _importing(self, name: str, *arguments: Any, **named: Any) -> Any:
        """Imports without counting, because importing a framework calls a hundred thousand functions."""
        top = name.partition(".")[0]
        if top in sys.modules or sys.getprofile() != self._event or self._is_user_module(top):
            return self._import(name, *arguments, **named)
        sys.setprofile(None)
        try:
            return self._import(name, *arguments, **named)
        finally:
            sys.setprofile(self._event)

    def _is_user_module(self, name: str) -> bool:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            return False
        return spec is not None and spec.origin is not None and self._is_user(spec.origin)

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        state = self._thread
        if state.device is not None:
            # Counting the device's own calls would take longer than the calls. Functions of the user that it calls do
            # count.
            if frame is state.device and event == "return":
                state.device = None
                state.tensors += time.perf_counter() - state.since
                return
            if not self._mine(frame.f_code):
                return
        elif event == "call" and self._device(frame.f_code):
            state.device, state.since = frame, time.perf_counter()
            return
        if event == "call":
            if self._mine(frame.f_code) or self._called_by_user(frame):
                self._called(frame)
        elif event == "return":
            opened = self._thread.open
            if opened and opened[-1].frame is frame:
                self._returned(opened.pop(), argument)

    def _mine(self, code: CodeType) -> bool:
        found = self._user.get(code)
        if found is None:
            found = self._user[code] = self._is_user(code.co_filename)
        return found

    def _device(self, code: CodeType) -> bool:
        found = self._of_device.get(code)
        if found is None:
            found = self._of_device[code] = code.co_filename.startswith(_DEVICE) and not code.co_flags & _ONCE_PER_YIELD
        return found

    def _called_by_user(self, frame: FrameType) -> bool:
        """Returns whether the user's code calls this function of a library, directly or through a decorator of the
        library."""
        caller = frame.f_back
        for _ in range(_DECORATORS):
            if caller is None or self._mine(caller.f_code) or "<locals>" not in caller.f_code.co_qualname:
                break
            caller = caller.f_back
        return caller is not None and self._mine(caller.f_code)

    def _called(self, frame: FrameType) -> None:
        state = self._thread
        code = frame.f_code
        # A rule cannot name "<module>", "<lambda>" or "outer.<locals>.inner".
        if state.busy or "<" in code.co_qualname or code.co_flags & _ONCE_PER_YIELD:
            return
        module = frame.f_globals.get("__name__", "")
        mine = self._mine(code)
        if not mine and (self._ignored(module) or code.co_name.startswith("_")):
            return
        qualname = code.co_qualname
        if "." in qualname and code.co_argcount and code.co_varnames[0] == "self":
            # Use the class of the object, not the ancestor that defines the method.
            own = type(frame.f_locals["self"])
            module, qualname = own.__module__, f"{own.__qualname__}.{code.co_name}"
        name = f"{module}.{qualname}"
        calls = self.table.get(name)
        if calls is None:
            calls = self.table[name] = Calls(module, qualname, library=not mine)
        calls.calls += 1
        sized = not calls.obstacle and (calls.calls <= _SIZED_CALLS or calls.calls & (calls.calls - 1) == 0)
        watch = None
        if sized:
            with self._pause():
                watch = _looked_at(frame, calls)
        outermost = all(opened.calls is not calls for opened in state.open)
        since = time.perf_counter() - state.paused
        state.open.append(_Open(frame, calls, since, watch, outermost, state.tensors))

    def _returned(self, opened: _Open, result: object) -> None:
        state = self._thread
        calls = opened.calls
        if opened.outermost:
            seconds = time.perf_counter() - state.paused - opened.since
            calls.seconds += seconds
            outer = state.open[-1].calls.name if state.open else ""
            calls.within[outer] = calls.within.get(outer, 0.0) + seconds
            calls.tensor_seconds += min(seconds, state.tensors - opened.tensors)
        if opened.watch is not None and not calls.obstacle:
            with self._pause():
                calls.result_bytes = max(calls.result_bytes, _written(result, "its result", calls)[0])
                _compare(opened.watch, opened.frame.f_code, calls)

    @contextlib.contextmanager
    def _pause(self) -> Iterator[None]:
        """Pauses the measuring: pickling calls functions too, and its time is not the program's."""
        state = self._thread
        began = time.perf_counter()
        state.busy = True
        try:
            yield
        finally:
            state.busy = False
            state.paused += time.perf_counter() - began


def _looked_at(frame: FrameType, calls: Calls) -> Watch:
    """Measures the sizes of the arguments, and stores their states."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    values = frame.f_locals
    # The object of a method would be in the acceptor already.
    names = [name for name in code.co_varnames[:count] if not ("." in calls.qualname and name in {"self", "cls"})]
    arguments = {name: values[name] for name in names if name in values}
    found = {name: _written(value, f"its argument {name}", calls) for name, value in arguments.items()}
    calls.argument_bytes = max(calls.argument_bytes, sum(size for size, _ in found.values()))
    if large := [name for name, (size, _) in found.items() if size > COMPARED]:
        calls.caution = calls.caution or f"whether it changes its large argument {large[0]} was not looked at"
    watch = Watch(arguments, {name: state for name, (_, state) in found.items()}, frame)
    # For a function of the script, offload sends its globals with each call.
    if calls.module != "__main__":
        calls.caution = calls.caution or watch.since(calls.globals)
    return watch


def _compare(watch: Watch, code: CodeType, calls: Calls) -> None:
    named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    for name in watch.changed():
        # Arguments in *args and **kwargs have no name that a rule could give.
        known = name if name in named else "auto"
        if known not in calls.mutates:
            calls.mutates.append(known)
    calls.caution = calls.caution or watch.outside()
    calls.globals = watch.globals


def _written(value: object, what: str, calls: Calls) -> tuple[int, str | None]:
    try:
        return written(value)
    except TooLargeError:
        calls.obstacle = f"{what} is larger than 4 GiB"
    except Exception as error:
        calls.obstacle = f"{what} cannot be pickled ({' '.join(str(error).split())[:120]})"
    return 0, None
