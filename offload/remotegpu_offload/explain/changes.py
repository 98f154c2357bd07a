"""What a call changes besides its result: its arguments, globals, random numbers. Looked at before it and after it."""

import contextlib
import hashlib
import random
import sys
import types
from collections.abc import Iterable, Mapping
from types import CodeType, FrameType
from typing import Any, Final

import cloudpickle

_LARGEST: Final = 1 << 32
COMPARED: Final = 256 << 20
"""So many bytes of an argument are compared; of a larger one nobody knows whether it changes."""
_FUNCTIONS: Final = 64  # whose globals are looked at, from one function on


class TooLargeError(Exception):
    """A value is larger than what could be sent."""


class _Sum:
    """A file that only counts and, up to a limit, adds up what is written."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = hashlib.blake2b(digest_size=16)

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.add(size)
        self.mark(data)
        return size

    def mark(self, data: Any) -> None:
        """Tells it from others, and does not cross."""
        if self.count <= COMPARED:
            self._sum.update(data)

    def add(self, count: int) -> None:
        self.count += count
        if self.count > _LARGEST:
            raise TooLargeError

    @property
    def state(self) -> str | None:
        return self._sum.hexdigest() if self.count <= COMPARED else None


class _Writer(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Buffers and tensors are not copied; a tensor on a device would otherwise be fetched for it."""

    def __init__(self, total: _Sum) -> None:
        super().__init__(total, protocol=5, buffer_callback=lambda found: self._add(found.raw()))
        self._total = total

    def _add(self, data: Any) -> None:
        self._total.write(data)

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            self._tensor(torch, value)
            # Its gradient, and what it was given besides.
            return bytes, (), (value.grad if value.is_leaf else None, vars(value))
        return super().reducer_override(value)

    def _tensor(self, torch: Any, value: Any) -> None:
        if value.device.type == "cpu" and value.layout == torch.strided and not value.is_quantized:
            with contextlib.suppress(RuntimeError, TypeError), torch.no_grad():
                self._add(memoryview(value.detach().contiguous().view(-1).view(torch.uint8).numpy()))
                return
        # A device's contents stay there; what changes them in place counts.
        self._total.add(value.numel() * value.element_size())
        version = 0 if value.is_inference() else value._version
        self._total.mark(f"{id(value)} {version}".encode())


def written(value: object) -> tuple[int, str | None]:
    """How many bytes a value is on the wire, and what tells whether it is the same later; None: too much of it.

    Raises whatever pickling it raises.
    """
    total = _Sum()
    _Writer(total).dump(value)
    return total.count, total.state


class Watch:
    """What a call may change: `arguments`, and what the function that begins in `frame` sees of its module.

    `states`: of the arguments, as `written` gave them. `globals`: of what it sees, before it or, later, after it.
    """

    def __init__(self, arguments: Mapping[str, Any], states: Mapping[str, str | None], frame: FrameType) -> None:
        self._arguments = arguments
        self._states = states
        self._code = frame.f_code
        self._scope = frame.f_globals
        self.globals = dict(self._outside())
        self._random = _random_states()

    def changed(self) -> list[str]:
        """The names of the arguments that are no longer what they were."""
        return [name for name, value in self._arguments.items() if _differs(value, self._states.get(name))]

    def outside(self) -> str:
        """What else has changed, which no rule brings back; empty if nothing has."""
        before, self.globals = self.globals, dict(self._outside())
        if changed := _unlike(before, self.globals):
            return f"it changes the global {changed[0]}, and would do so only there"
        drawn = [name for name, state in _random_states().items() if self._random.get(name, state) != state]
        if drawn:
            return f"it draws from the random numbers of {drawn[0]}, whose seed stays here: seed them inside it"
        return ""

    def since(self, before: Mapping[str, str]) -> str:
        """What the program has changed since these were the globals, and a function elsewhere would not see."""
        changed = _unlike(before, {name: state for name, state in self.globals.items() if name in before})
        return f"it reads the global {changed[0]}, which the program changes here" if changed else ""

    def _outside(self) -> Iterable[tuple[str, str]]:
        for name, scope in _names(self._code, self._scope).items():
            with contextlib.suppress(Exception):
                if (state := written(_data(scope[name.rpartition(".")[2]]))[1]) is not None:
                    yield name, state


def _unlike(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def _differs(value: Any, before: str | None) -> bool:
    try:
        return before is not None and written(value)[1] != before
    except Exception:
        # It could be written, and now it cannot.
        return True


def _data(value: Any) -> Any:
    """Of a class what it holds that is no code."""
    if isinstance(value, type):
        return {name: held for name, held in vars(value).items() if name[:2] != "__" and not callable(held)}
    return value


def _names(code: CodeType, scope: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The globals that may change while a function runs, what it and the functions that it names refer to, and where
    they are.
    """
    found: dict[str, dict[str, Any]] = {}
    seen: set[CodeType] = set()
    todo = [(code, scope)]
    while todo and len(seen) < _FUNCTIONS:
        code, scope = todo.pop()
        if code in seen:
            continue
        seen.add(code)
        todo.extend((each, scope) for each in code.co_consts if isinstance(each, CodeType))
        home = scope.get("__name__", "")
        for name in code.co_names:
            value = scope.get(name)
            if isinstance(value, types.FunctionType):
                if _same_program(value.__globals__, scope):
                    todo.append((value.__code__, value.__globals__))
            elif name in scope and not _belongs_elsewhere(value, home):
                found[f"{home}.{name}"] = scope
    return found


def _same_program(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two modules are of one package, or lie beside each other."""
    folders = [str(each.get("__file__") or "").rpartition("/")[0] for each in (one, other)]
    return folders[0] == folders[1]


def _belongs_elsewhere(value: Any, home: str) -> bool:
    """A class or other code that the module has only imported."""
    return isinstance(value, types.ModuleType | types.BuiltinFunctionType) or (
        isinstance(value, type) and value.__module__ != home
    )


def _random_states() -> dict[str, Any]:
    states: dict[str, Any] = {"random": random.getstate()}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and hasattr(numpy, "random"):
        kind, keys, *rest = numpy.random.get_state()
        states["numpy"] = (kind, keys.tobytes(), *rest)
    if torch is not None and hasattr(torch, "default_generator"):
        states["torch"] = bytes(torch.default_generator.get_state().numpy().data)
    return states
