"""Suggests rules that would save time, from the counts of calls. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from remotegpu_offload.explain.calls import Calls

# The cost of a call, measured over gRPC on loopback (docs/benchmarks.md), and the rate of a 10 Gbit/s network.
CALL_SECONDS: Final = 0.0006
BYTES_PER_SECOND: Final = 1.2e9
# A rule is worthwhile if a call takes this many times as long as sending it, and the function this share of the run.
_WORTH: Final = 10
_SHARE: Final = 0.05
# A function with this share of the run is the whole program.
_WHOLE: Final = 0.9
# A function with this share of its time in tensor operations needs only a torch rule.
_MOSTLY: Final = 0.5


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A proposed rule, with its reason."""

    key: str  # "function" or "class"
    name: str
    why: str
    mutates: tuple[str, ...] = ()  # changed arguments; ("auto",): some of them have no name
    caution: str = ""  # why the program might then behave differently

    @property
    def rule(self) -> str:
        """The entry of `offload` in remotegpu.yaml."""
        if not self.mutates:
            return f"{self.key}: {self.name}"
        mutates = "auto" if "auto" in self.mutates else f"[{', '.join(self.mutates)}]"
        return f"{{{self.key}: {self.name}, mutates: {mutates}}}"


def crossing_seconds(calls: Calls) -> float:
    """Estimates the additional seconds of one call if the function ran in an acceptor."""
    return CALL_SECONDS + (calls.argument_bytes + calls.result_bytes) / BYTES_PER_SECOND


def pays(calls: Calls, total: float) -> bool:
    """Returns whether the function can run in an acceptor, and is worth a rule if the acceptor computes faster."""
    seconds = calls.seconds - calls.tensor_seconds
    if calls.obstacle or not calls.calls or seconds < _SHARE * total or served_by_torch(calls):
        return False
    return seconds / calls.calls >= _WORTH * crossing_seconds(calls)


def served_by_torch(calls: Calls) -> bool:
    """Returns whether most of the function's time is in tensor operations, which a torch rule moves without it."""
    return calls.tensor_seconds > _MOSTLY * calls.seconds


def suggest(table: Mapping[str, Calls], total: float) -> list[Suggestion]:
    """Suggests rules for the outermost functions that pay.

    A function that is the whole program is left out if functions that it calls pay.
    """
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
        # A class rule moves all methods of the class.
        key = ("class", f"{each.module}.{each.qualname.rpartition('.')[0]}")
        if key in chosen_rules and each not in chosen_rules[key]:
            chosen_rules[key].append(each)
    return [_suggestion(key, name, calls, total) for (key, name), calls in chosen_rules.items()]


def _suggestion(key: str, name: str, calls: list[Calls], total: float) -> Suggestion:
    """Makes the suggestion. The first of `calls` is the one that pays."""
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
    """Returns whether `name` is mostly called, directly or indirectly, by `other`."""
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
