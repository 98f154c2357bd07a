"""Suggests rules that would pay, from the counts of calls. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from remotegpu_offload.explain.calls import Calls

# What a call costs: measured over gRPC on loopback (docs/benchmarks.md), and a network of 10 Gbit/s.
CALL_SECONDS: Final = 0.0006
BYTES_PER_SECOND: Final = 1.2e9
# A call must take so many times what sending it takes, and the function so much of the run, to be worth a rule.
_WORTH: Final = 10
_SHARE: Final = 0.05
# A function with so much of the run is the program.
_WHOLE: Final = 0.9
# With so much of its time in operations on tensors, a function is nothing besides them.
_MOSTLY: Final = 0.5


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A rule, and why."""

    key: str  # "function" or "class"
    name: str
    why: str
    mutates: tuple[str, ...] = ()  # arguments that its calls change; ("auto",): some of them have no name
    caution: str = ""  # why the program would then do something else

    @property
    def rule(self) -> str:
        """An entry of `offload` in remotegpu.yaml."""
        if not self.mutates:
            return f"{self.key}: {self.name}"
        mutates = "auto" if "auto" in self.mutates else f"[{', '.join(self.mutates)}]"
        return f"{{{self.key}: {self.name}, mutates: {mutates}}}"


def crossing_seconds(calls: Calls) -> float:
    """Estimates how many seconds longer one call would take elsewhere."""
    return CALL_SECONDS + (calls.argument_bytes + calls.result_bytes) / BYTES_PER_SECOND


def pays(calls: Calls, total: float) -> bool:
    """Whether the function may run elsewhere, and gains by it if the other side computes faster."""
    seconds = calls.seconds - calls.tensor_seconds
    if calls.obstacle or not calls.calls or seconds < _SHARE * total or served_by_torch(calls):
        return False
    return seconds / calls.calls >= _WORTH * crossing_seconds(calls)


def served_by_torch(calls: Calls) -> bool:
    """Whether its time is that of operations on tensors, which a torch rule moves without it."""
    return calls.tensor_seconds > _MOSTLY * calls.seconds


def suggest(table: Mapping[str, Calls], total: float) -> list[Suggestion]:
    """Suggests rules for the outermost functions that pay; not for one that is the whole program, where others inside
    it pay."""
    paying = {name: calls for name, calls in table.items() if pays(calls, total)}
    inner = {
        name
        for name in paying
        if any(_inside(table, other, name) for other in paying if other != name)
        and table[name].seconds >= _WHOLE * total
    }
    chosen = [name for name in sorted(paying, key=lambda name: -paying[name].seconds) if name not in inner]
    outer = [name for name in chosen if not any(_inside(table, name, other) for other in chosen if other != name)]
    chosen_rules: dict[tuple[str, str], list[Calls]] = {}
    for name in outer:
        calls = paying[name]
        holder, _, _ = calls.qualname.rpartition(".")
        key = ("class", f"{calls.module}.{holder}") if holder else ("function", name)
        chosen_rules.setdefault(key, [calls])
    for each in table.values():
        # All methods of a class go there with it.
        key = ("class", f"{each.module}.{each.qualname.rpartition('.')[0]}")
        if key in chosen_rules and each not in chosen_rules[key]:
            chosen_rules[key].append(each)
    return [_suggestion(key, name, calls, total) for (key, name), calls in chosen_rules.items()]


def _suggestion(key: str, name: str, calls: list[Calls], total: float) -> Suggestion:
    """Makes the suggestion. The first of `calls` is why it pays."""
    first = calls[0]
    size = first.argument_bytes + first.result_bytes
    why = (
        f"{first.calls} calls of {first.seconds / first.calls * 1e3:.1f} ms, {first.seconds / total:.0%} of the "
        f"run; {size / 1e6:.2f} MB cross each"
    )
    mutates = dict.fromkeys(argument for each in calls for argument in each.mutates)
    caution = next((each.caution for each in calls if each.caution), "")
    return Suggestion(key, name, why, tuple(mutates), caution)


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
