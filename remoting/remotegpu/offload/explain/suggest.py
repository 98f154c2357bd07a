"""From what was counted to rules that would pay. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from remotegpu.offload.explain.calls import Calls

# What a call costs: measured over gRPC on loopback (docs/benchmarks.md), and a network of 10 Gbit/s.
CALL_SECONDS: Final = 0.0006
BYTES_PER_SECOND: Final = 1.2e9
# A call must take so many times what sending it takes, and the function so much of the run, to be worth a rule.
_WORTH: Final = 10
_SHARE: Final = 0.05
# A function with so much of the run is the program.
_WHOLE: Final = 0.9


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A rule, and why."""

    key: str  # "function" or "class"
    name: str
    why: str

    @property
    def rule(self) -> str:
        return f"{self.key}: {self.name}"


def crossing_seconds(calls: Calls) -> float:
    """What one call would cost more, elsewhere."""
    return CALL_SECONDS + (calls.argument_bytes + calls.result_bytes) / BYTES_PER_SECOND


def pays(calls: Calls, total: float) -> bool:
    """Whether the function may run elsewhere, and gains by it if the other side computes faster."""
    if calls.obstacle or not calls.calls or calls.seconds < _SHARE * total:
        return False
    return calls.seconds / calls.calls >= _WORTH * crossing_seconds(calls)


def suggest(table: Mapping[str, Calls], total: float) -> list[Suggestion]:
    """Rules for the outermost functions that pay; not for one that is the whole program, where others inside it pay."""
    paying = {name: calls for name, calls in table.items() if pays(calls, total)}
    inner = {
        name
        for name in paying
        if any(_inside(table, other, name) for other in paying if other != name)
        and table[name].seconds >= _WHOLE * total
    }
    chosen = [name for name in sorted(paying, key=lambda name: -paying[name].seconds) if name not in inner]
    outer = [name for name in chosen if not any(_inside(table, name, other) for other in chosen if other != name)]
    found: dict[str, Suggestion] = {}
    for name in outer:
        calls = paying[name]
        holder, _, _ = calls.qualname.rpartition(".")
        key, target = ("class", f"{calls.module}.{holder}") if holder else ("function", name)
        size = calls.argument_bytes + calls.result_bytes
        why = (
            f"{calls.calls} calls of {calls.seconds / calls.calls * 1e3:.1f} ms, {calls.seconds / total:.0%} of the "
            f"run; {size / 1e6:.2f} MB cross each"
        )
        found.setdefault(target, Suggestion(key, target, why))
    return list(found.values())


def _inside(table: Mapping[str, Calls], name: str, other: str) -> bool:
    """Whether `name` is mostly called, directly or not, by `other`."""
    seen: set[str] = set()
    current = name
    while current and current not in seen:
        seen.add(current)
        within = table[current].within if current in table else {}
        if not within:
            return False
        current = max(within, key=lambda outer: within[outer])
        if current == other:
            return True
    return False
