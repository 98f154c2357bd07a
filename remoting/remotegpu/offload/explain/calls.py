"""Which functions of a program take long, and how large what they take and give is: candidates for rules of cut B."""

import builtins
import contextlib
import importlib.util
import inspect
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, Final

import cloudpickle

# Sizes are taken of the first calls and of each call whose number is a power of two.
_SIZED_CALLS: Final = 3
_LARGEST: Final = 1 << 32
_DECORATORS: Final = 4
_ONCE_PER_YIELD: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@dataclass(slots=True)
class Calls:
    """All calls of one function. Seconds are inclusive, and of recursion only those of the outermost call."""

    module: str
    qualname: str
    calls: int = 0
    seconds: float = 0.0
    argument_bytes: int = 0  # the largest that was seen
    result_bytes: int = 0
    obstacle: str = ""  # why it could not run elsewhere, as far as was seen
    within: dict[str, float] = field(default_factory=dict)  # seconds by the calling function of this table
    library: bool = False  # not the user's own: called by the user's code

    @property
    def name(self) -> str:
        return f"{self.module}.{self.qualname}"


class _TooLargeError(Exception):
    pass


class _Counter:
    """A file that only counts."""

    def __init__(self) -> None:
        self.count = 0

    def write(self, data: bytes) -> int:
        self.add(len(data))
        return len(data)

    def add(self, count: int) -> None:
        self.count += count
        if self.count > _LARGEST:
            raise _TooLargeError


class _Sizer(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Buffers and tensors count, and are not copied; a tensor on a device would otherwise be fetched for it."""

    def __init__(self, counter: _Counter) -> None:
        super().__init__(counter, protocol=5, buffer_callback=self._buffer)
        self._counter = counter

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            self._counter.add(value.numel() * value.element_size())
            return bytes, ()
        return super().reducer_override(value)

    def _buffer(self, found: pickle.PickleBuffer) -> None:
        self._counter.add(found.raw().nbytes)


def pickled_bytes(value: object) -> int:
    """How many bytes a value is on the wire. Raises whatever pickling it raises."""
    counter = _Counter()
    _Sizer(counter).dump(value)
    return counter.count


@dataclass(slots=True)
class _Open:
    frame: FrameType
    calls: Calls
    since: float
    sized: bool
    outermost: bool


class _Thread(threading.local):
    def __init__(self) -> None:
        self.open: list[_Open] = []
        self.busy = False
        self.paused = 0.0


class Profile:
    """Counts while it is entered. `is_user` tells the user's own source files; functions of libraries count where these
    call them, unless `ignored` is true of their module's name.
    """

    def __init__(self, is_user: Callable[[str], bool], ignored: Callable[[str], bool]) -> None:
        self.table: dict[str, Calls] = {}
        self._is_user = is_user
        self._ignored = ignored
        self._user: dict[CodeType, bool] = {}
        self._thread = _Thread()
        self._import = builtins.__import__

    def __enter__(self) -> "Profile":
        self._import, builtins.__import__ = builtins.__import__, self._importing
        threading.setprofile(self._event)
        sys.setprofile(self._event)
        return self

    @property
    def seconds(self) -> float:
        """What was spent in functions of the table: the run without its imports."""
        return sum(calls.within.get("", 0.0) for calls in self.table.values())

    @property
    def paused(self) -> float:
        """Seconds that the measuring itself took, in this thread."""
        return self._thread.paused

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)
        builtins.__import__ = self._import

    def _importing(self, name: str, *arguments: Any, **named: Any) -> Any:
        """Importing a framework calls a hundred thousand functions, none of which counts."""
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

    def _called_by_user(self, frame: FrameType) -> bool:
        """Whether the user's code calls this function of a library, if need be through its decorators."""
        caller = frame.f_back
        for _ in range(_DECORATORS):
            if caller is None or self._mine(caller.f_code) or "<locals>" not in caller.f_code.co_qualname:
                break
            caller = caller.f_back
        return caller is not None and self._mine(caller.f_code)

    def _called(self, frame: FrameType) -> None:
        state = self._thread
        code = frame.f_code
        # What has no name that a rule could give: "<module>", "<lambda>", "outer.<locals>.inner".
        if state.busy or "<" in code.co_qualname or code.co_flags & _ONCE_PER_YIELD:
            return
        module = frame.f_globals.get("__name__", "")
        mine = self._mine(code)
        if not mine and (self._ignored(module) or code.co_name.startswith("_")):
            return
        qualname = code.co_qualname
        if "." in qualname and code.co_argcount and code.co_varnames[0] == "self":
            # The class of the object, not the one of its ancestors that has the method.
            own = type(frame.f_locals["self"])
            module, qualname = own.__module__, f"{own.__qualname__}.{code.co_name}"
        name = f"{module}.{qualname}"
        calls = self.table.get(name)
        if calls is None:
            calls = self.table[name] = Calls(module, qualname, library=not mine)
        calls.calls += 1
        sized = not calls.obstacle and (calls.calls <= _SIZED_CALLS or calls.calls & (calls.calls - 1) == 0)
        if sized:
            with self._pause():
                calls.argument_bytes = max(calls.argument_bytes, _argument_bytes(frame, calls))
        outermost = all(opened.calls is not calls for opened in state.open)
        state.open.append(_Open(frame, calls, time.perf_counter() - state.paused, sized, outermost))

    def _returned(self, opened: _Open, result: object) -> None:
        state = self._thread
        calls = opened.calls
        if opened.outermost:
            seconds = time.perf_counter() - state.paused - opened.since
            calls.seconds += seconds
            outer = state.open[-1].calls.name if state.open else ""
            calls.within[outer] = calls.within.get(outer, 0.0) + seconds
        if opened.sized and not calls.obstacle:
            with self._pause():
                calls.result_bytes = max(calls.result_bytes, _sized(result, "its result", calls))

    @contextlib.contextmanager
    def _pause(self) -> Iterator[None]:
        """Pickling calls functions too, and takes time that is not the program's."""
        state = self._thread
        began = time.perf_counter()
        state.busy = True
        try:
            yield
        finally:
            state.busy = False
            state.paused += time.perf_counter() - began


def _argument_bytes(frame: FrameType, calls: Calls) -> int:
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    values = frame.f_locals
    # A method's object would live there.
    names = [name for name in code.co_varnames[:count] if not ("." in calls.qualname and name in {"self", "cls"})]
    return sum(_sized(values[name], f"its argument {name}", calls) for name in names if name in values)


def _sized(value: object, what: str, calls: Calls) -> int:
    try:
        return pickled_bytes(value)
    except _TooLargeError:
        calls.obstacle = f"{what} is larger than 4 GiB"
    except Exception as error:
        calls.obstacle = f"{what} cannot be pickled ({' '.join(str(error).split())[:120]})"
    return 0
