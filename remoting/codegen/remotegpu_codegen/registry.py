"""The function tables as typed values. They are checked when they are read."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from remotegpu_codegen import kinds


class Rule(StrEnum):
    """A rule for functions of the driver. The value describes it."""

    UNIQUE = "stands there twice"
    WIRE = "wire names a function of the same class that travels, whose parameters are meant"
    REASON = "a refused function needs a reason, no other has one"
    NUMBER = "numbers are from 1 to 32767"
    PER_THREAD = "per_thread is ptsz or ptds"
    TRAVELS = "only async and sync functions have parameters, wire or client"
    CLIENT = "the client's end of an async function is written by hand"
    ORDER = "a sync function is not in the order of a stream"
    NO_OUTPUT = "an async function has no outputs"
    ONE_OUTPUT = "functions with several outputs are written by hand"
    PLAIN_OUTPUT = "outputs are plain values"
    ONE_HANDLE = "at most one stream and one function"


class RegistryError(Exception):
    """A contradiction in the registry. The message names the place; `rule` is the broken rule, or None."""

    def __init__(self, message: str, rule: Rule | None = None) -> None:
        super().__init__(message)
        self.rule = rule


class Class(StrEnum):
    LOCAL = "local"
    HANDWRITTEN = "handwritten"
    ASYNC = "async"
    SYNC = "sync"
    REFUSED = "refused"
    LACKING = "lacking"


GENERATED = (Class.ASYNC, Class.SYNC)


@dataclass(frozen=True)
class Parameter:
    kind: str
    name: str
    out: bool = False

    def __str__(self) -> str:
        return f"{'out ' if self.out else ''}{self.kind} {self.name}"


@dataclass(frozen=True)
class Function:
    group: str
    number: int
    symbol: str
    since: int
    handling: Class
    per_thread: str | None = None
    reason: str | None = None
    client_by_hand: bool = False
    wire: str | None = None
    parameters: tuple[Parameter, ...] = ()
    on_default_stream: bool = False
    """Travels in the order of the default stream, which is no parameter."""

    @property
    def base(self) -> str:
        return re.sub(r"_v\d+$", "", self.symbol)

    @property
    def per_thread_symbol(self) -> str | None:
        return f"{self.symbol}_{self.per_thread}" if self.per_thread else None

    @property
    def symbols(self) -> tuple[str, ...]:
        return (self.symbol, self.per_thread_symbol) if self.per_thread_symbol else (self.symbol,)

    @property
    def travels(self) -> bool:
        """Whether the function has its own number in frames."""
        return self.handling in GENERATED and self.wire is None

    @property
    def inputs(self) -> tuple[Parameter, ...]:
        return tuple(p for p in self.parameters if not p.out)

    @property
    def output(self) -> Parameter | None:
        return next((p for p in self.parameters if p.out), None)

    def of_kind(self, kind: str) -> Parameter | None:
        return next((p for p in self.parameters if p.kind == kind), None)

    @property
    def in_current_context(self) -> bool:
        return not self.on_default_stream and not any(p.kind in kinds.HANDLES for p in self.parameters)


@dataclass(frozen=True)
class NvmlFunction:
    group: str
    symbol: str
    handling: Class


@dataclass(frozen=True)
class Registry:
    driver: tuple[Function, ...]
    nvml: tuple[NvmlFunction, ...]

    @property
    def travelling(self) -> tuple[Function, ...]:
        return tuple(f for f in self.driver if f.travels)

    @property
    def exports(self) -> tuple[str, ...]:
        """All symbols that the client's library must export, sorted."""
        return tuple(sorted([s for f in self.driver for s in f.symbols] + [f.symbol for f in self.nvml]))


def load(folder: Path) -> Registry:
    """Reads and checks `driver.yaml` and `nvml.yaml`.

    Raises RegistryError if the files contradict themselves.
    """
    driver = driver_functions(yaml.safe_load((folder / "driver.yaml").read_text()))
    nvml = tuple(nvml_functions(yaml.safe_load((folder / "nvml.yaml").read_text())))
    registry = Registry(driver, nvml)
    check(registry)
    return registry


def driver_functions(groups: Mapping[str, list[dict[str, Any]]]) -> tuple[Function, ...]:
    functions = [_driver_function(group, dict(entry)) for group, entries in groups.items() for entry in entries]
    travelling = {f.symbol: f for f in functions if f.travels}
    return tuple(_with_parameters_of_its_wire(f, travelling) for f in functions)


def _with_parameters_of_its_wire(function: Function, travelling: Mapping[str, Function]) -> Function:
    if function.wire is None:
        return function
    target = travelling.get(function.wire)
    if target is None or target.handling is not function.handling or function.parameters:
        raise RegistryError(f"{function.symbol}: {Rule.WIRE}", Rule.WIRE)
    parameters = tuple(p for p in target.parameters if p.kind != kinds.STREAM)
    return replace(function, parameters=parameters, on_default_stream=parameters != target.parameters)


def _driver_function(group: str, entry: dict[str, Any]) -> Function:
    symbol = entry.get("symbol", "an entry without a symbol")
    try:
        function = Function(
            group=group,
            number=int(entry.pop("number")),
            symbol=entry.pop("symbol"),
            since=int(entry.pop("since")),
            handling=Class(entry.pop("class")),
            per_thread=entry.pop("per_thread", None),
            reason=entry.pop("reason", None),
            client_by_hand=_is_by_hand(entry.pop("client", None)),
            wire=entry.pop("wire", None),
            parameters=tuple(parameter(text) for text in entry.pop("parameters", ())),
        )
    except (KeyError, ValueError) as error:
        raise RegistryError(f"{symbol} in {group}: {error}") from error
    if entry:
        raise RegistryError(f"{symbol} in {group}: unknown fields {', '.join(entry)}")
    return function


def _is_by_hand(value: str | None) -> bool:
    if value not in (None, "handwritten"):
        raise ValueError(f"client is {value}, can only be handwritten")
    return value is not None


PARAMETER = re.compile(r"(?P<out>out )?(?P<kind>\w+) (?P<name>\w+)")


def parameter(text: str) -> Parameter:
    """Parses `[out] kind name`.

    Raises ValueError for another text.
    """
    found = PARAMETER.fullmatch(text)
    if found is None or found["kind"] not in kinds.NAMES:
        raise ValueError(f"{text!r} is not '[out] kind name' with a known kind")
    return Parameter(found["kind"], found["name"], found["out"] is not None)


def nvml_functions(groups: Mapping[str, list[dict[str, Any]]]) -> Iterator[NvmlFunction]:
    for group, entries in groups.items():
        for entry in entries:
            try:
                yield NvmlFunction(group, entry["symbol"], Class(entry["class"]))
            except (KeyError, ValueError) as error:
                raise RegistryError(f"{entry} in {group}: {error}") from error


def check(registry: Registry) -> None:
    """Raises RegistryError for the first contradiction in the registry."""
    _unique("symbol", (s for f in registry.driver for s in f.symbols))
    _unique("symbol", (f.symbol for f in registry.nvml))
    _unique("number", (f.number for f in registry.driver))
    _unique("base name and version", ((f.base, f.since) for f in registry.driver))
    for function in registry.driver:
        if function.handling is Class.LACKING:
            raise RegistryError(f"{function.symbol}: only NVML's functions are lacking")
        broken = _broken(function)
        if broken:
            raise RegistryError(f"{function.symbol}: {broken}", broken)
    for nvml in registry.nvml:
        if nvml.handling not in (Class.LOCAL, Class.LACKING, Class.REFUSED):
            raise RegistryError(f"{nvml.symbol}: NVML functions are local, lacking or refused")


def _unique(what: str, values: Iterable[object]) -> None:
    seen: set[object] = set()
    for value in values:
        if value in seen:
            raise RegistryError(f"{what} {value} {Rule.UNIQUE}", Rule.UNIQUE)
        seen.add(value)


def _broken(function: Function) -> Rule | None:
    generated = function.handling in GENERATED
    outs = [p for p in function.parameters if p.out]
    checks = {
        Rule.REASON: (function.reason is not None) == (function.handling is Class.REFUSED),
        Rule.NUMBER: 0 < function.number < 0x8000,
        Rule.PER_THREAD: function.per_thread in (None, "ptsz", "ptds"),
        Rule.TRAVELS: generated or not (function.parameters or function.wire or function.client_by_hand),
        Rule.CLIENT: function.handling is not Class.ASYNC or function.client_by_hand,
        Rule.ORDER: function.handling is not Class.SYNC or not function.of_kind(kinds.STREAM),
        Rule.NO_OUTPUT: function.handling is not Class.ASYNC or not outs,
        Rule.ONE_OUTPUT: len(outs) <= 1,
        Rule.PLAIN_OUTPUT: all(p.kind in kinds.SCALARS for p in outs),
        Rule.ONE_HANDLE: all(
            sum(p.kind == kind for p in function.parameters) <= 1 for kind in (kinds.STREAM, kinds.FUNCTION)
        ),
    }
    return next((rule for rule, holds in checks.items() if not holds), None)
