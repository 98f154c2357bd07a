"""Finds the effects of a call besides its result: compares arguments, globals and random states before and after."""

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
"""So many bytes of an argument are compared; a larger argument may change unnoticed."""
_FUNCTIONS: Final = 64  # most functions, from one function on, whose globals are examined


class TooLargeError(Exception):
    """A value is too large to be sent."""


class _Sum:
    """A file object that counts the written bytes and, up to a limit, hashes them."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = hashlib.blake2b(digest_size=16)

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.add(size)
        self.mark(data)
        return size

    def mark(self, data: Any) -> None:
        """Adds data to the hash that would not be sent."""
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
    """Pickles a value to measure it. Does not copy buffers and tensors, because a copy would fetch a remote tensor."""

    def __init__(self, total: _Sum) -> None:
        super().__init__(total, protocol=5, buffer_callback=lambda found: self._add(found.raw()))
        self._total = total

    def _add(self, data: Any) -> None:
        self._total.write(data)

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            self._tensor(torch, value)
            # Also includes the tensor's gradient and its additional attributes.
            return bytes, (), (value.grad if value.is_leaf else None, vars(value))
        return super().reducer_override(value)

    def _tensor(self, torch: Any, value: Any) -> None:
        if value.device.type == "cpu" and value.layout == torch.strided and not value.is_quantized:
            with contextlib.suppress(RuntimeError, TypeError), torch.no_grad():
                self._add(memoryview(value.detach().contiguous().view(-1).view(torch.uint8).numpy()))
                return
        # The content of a tensor on a device stays there. Its version counts changes in place.
        self._total.add(value.numel() * value.element_size())
        version = 0 if value.is_inference() else value._version
        self._total.mark(f"{id(value)} {version}".encode())


def written(value: object) -> tuple[int, str | None]:
    """Returns the size in bytes of a value when sent, and a hash for comparing it later; None as hash if it is too
    large.

    Raises the errors of pickling.
    """
    total = _Sum()
    _Writer(total).dump(value)
    return total.count, total.state


class Watch:
    """Finds the changes of a call: to its `arguments`, and to the globals that the function of `frame` uses.

    `states` are the arguments' states from `written`. `globals` holds the states of the globals: before the call, and
    after `outside` those after the call.
    """

    def __init__(self, arguments: Mapping[str, Any], states: Mapping[str, str | None], frame: FrameType) -> None:
        self._arguments = arguments
        self._states = states
        self._code = frame.f_code
        self._scope = frame.f_globals
        self.globals = dict(self._outside())
        self._random = _random_states()

    def changed(self) -> list[str]:
        """Returns the names of the changed arguments."""
        return [name for name, value in self._arguments.items() if _differs(value, self._states.get(name))]

    def outside(self) -> str:
        """Describes the first other change, which no rule transfers back; "" if there is none."""
        before, self.globals = self.globals, dict(self._outside())
        if changed := _unlike(before, self.globals):
            return f"it changes the global {changed[0]}, and would do so only there"
        drawn = [name for name, state in _random_states().items() if self._random.get(name, state) != state]
        if drawn:
            return f"it draws from the random numbers of {drawn[0]}, whose seed stays here: seed them inside it"
        return ""

    def since(self, before: Mapping[str, str]) -> str:
        """Describes the first global of `before` that the program has changed since; "" if there is none.

        A function in the acceptor would not see that change.
        """
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
        # The value could be pickled before the call, and now it cannot.
        return True


def _data(value: Any) -> Any:
    """Returns the attributes of a class that are not code; any other value unchanged."""
    if isinstance(value, type):
        return {name: held for name, held in vars(value).items() if name[:2] != "__" and not callable(held)}
    return value


def _names(code: CodeType, scope: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the globals that a function may change, each with its scope.

    These are the globals that the function refers to, and those of the functions that it names.
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
    """Returns whether two modules are in the same folder."""
    folders = [str(each.get("__file__") or "").rpartition("/")[0] for each in (one, other)]
    return folders[0] == folders[1]


def _belongs_elsewhere(value: Any, home: str) -> bool:
    """Returns whether the value is a module, builtin or class that this module has only imported."""
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
