"""Generates the coverage report: the provided functions, and the refused ones with the reason. It is committed for
reviews.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeVar

from remotegpu_codegen.registry import Class, Function, NvmlFunction, Registry
from remotegpu_codegen.text import banner

F = TypeVar("F", Function, NvmlFunction)

MEANING = {
    Class.LOCAL: "answered in the client",
    Class.HANDWRITTEN: "a command, both ends written by hand",
    Class.ASYNC: "generated, nothing is waited for",
    Class.SYNC: "generated, a round trip",
    Class.REFUSED: "answers that it is not supported",
    Class.LACKING: "answers as on a device that has no such thing",
}


def render(registry: Registry, client: set[str], softgpu: set[str], calls: Mapping[str, Iterable[str]]) -> str:
    """Returns the report as Markdown.

    `client` and `softgpu` are the symbols that these crates export by hand. `calls` has the functions that each test
    program calls.
    """
    sections = [
        f"<!-- {banner('', registry, sorted(client), sorted(softgpu), calls).strip()} -->",
        "# Coverage of the driver interface and NVML",
        "Functions are counted by exported symbol, without the per-thread variants. The software GPU exports what "
        "`native` counts.",
        "## By class",
        _classes(registry),
        "## Driver interface by group",
        _groups(registry.driver, softgpu),
        "## NVML by group",
        _groups(registry.nvml, softgpu),
        "## Provided, with the tests that call it",
        "Recorded from runs of programs in `tests/compiled_programs` (`calls.yaml`), which run natively and remotely "
        "and check what they call: each function that does nothing and says that it worked makes one of them fail.",
        _tested(registry.driver, calls),
        _tested(registry.nvml, calls),
        "## Refused, with the reason",
        _refused(registry.driver),
        *_differences(registry, client),
    ]
    return "\n\n".join(sections) + "\n"


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _classes(registry: Registry) -> str:
    driver = Counter(f.handling for f in registry.driver)
    nvml = Counter(f.handling for f in registry.nvml)
    rows = [(c.value, MEANING[c], driver[c], nvml[c]) for c in Class]
    return _table(("class", "meaning", "driver", "NVML"), [*rows, ("all", "", driver.total(), nvml.total())])


def _grouped(functions: Iterable[F]) -> dict[str, list[F]]:
    by_group: dict[str, list[F]] = {}
    for function in functions:
        by_group.setdefault(function.group, []).append(function)
    return by_group


def _groups(functions: Iterable[F], softgpu: set[str]) -> str:
    rows = []
    for group, members in _grouped(functions).items():
        provided = [f.symbol for f in members if f.handling not in (Class.REFUSED, Class.LACKING)]
        native = sum(f.symbol in softgpu for f in members)
        rows.append((group, len(members), len(provided), native))
    return _table(("group", "functions", "provided", "native"), rows)


def _tested(functions: Iterable[F], calls: Mapping[str, Iterable[str]]) -> str:
    callers = callers_by_function(calls)
    rows = []
    for group, members in _grouped(functions).items():
        for function in members:
            if function.handling is not Class.REFUSED:
                rows.append((group, f"`{function.symbol}`", ", ".join(callers.get(function.symbol, ["**none**"]))))
    return _table(("group", "function", "tested by"), rows)


def callers_by_function(calls: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Returns the programs that call each function: at most three, then an ellipsis."""
    callers: dict[str, list[str]] = {}
    for program, symbols in sorted(calls.items()):
        for symbol in symbols:
            callers.setdefault(symbol, []).append(f"`{program}`")
    return {symbol: programs[:3] + ["…"] * (len(programs) > 3) for symbol, programs in callers.items()}


def _refused(functions: Iterable[Function]) -> str:
    by_reason: dict[str, list[str]] = {}
    for function in functions:
        if function.reason:
            by_reason.setdefault(function.reason, []).append(f"`{function.symbol}`")
    rows = [(reason, len(symbols), ", ".join(symbols)) for reason, symbols in sorted(by_reason.items())]
    return _table(("reason", "functions", ""), rows)


def _differences(registry: Registry, client: set[str]) -> list[str]:
    """Returns sections about symbols that only the table or only the client's sources have; empty if both agree."""
    by_hand = {
        symbol
        for f in registry.driver
        if f.handling in (Class.LOCAL, Class.HANDWRITTEN) or f.client_by_hand
        for symbol in f.symbols
    } | {f.symbol for f in registry.nvml if f.handling in (Class.LOCAL, Class.LACKING)}
    found = []
    for title, symbols in (
        ("Promised by the table, not in the client's sources", by_hand - client),
        ("In the client's sources, not expected by the table", client - by_hand),
    ):
        if symbols:
            found += [f"## {title}", ", ".join(f"`{s}`" for s in sorted(symbols))]
    return found
