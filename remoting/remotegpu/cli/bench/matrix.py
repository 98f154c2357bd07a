"""Chooses the configurations to measure. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

# "none": the back end itself in the measured process, without a wire.
# "auto": a Unix socket and shared memory, as the ends are on one machine; its reference is a bare Unix socket.
Carrier = Literal["auto", "direct", "grpc", "none"]
# The CPUs of the ends: two, one, or the scheduler's choice.
CpuPlacement = Literal["split", "same", "free"]

CARRIERS: Final[tuple[Carrier, ...]] = ("direct", "grpc")
DELAYS_MS: Final = (1, 10)
ONE_CPU: Final = "only one CPU may be used here: the ends cannot be on two"


@dataclass(frozen=True, slots=True)
class Configuration:
    carrier: Carrier
    tls: bool = False
    placement: CpuPlacement = "split"
    # Each way, through the delaying proxy.
    delay_ms: int = 0

    @property
    def name(self) -> str:
        return f"{self.transport}, {self.placement}{self._delay}"

    @property
    def place(self) -> str:
        where = {"split": "ends on two CPUs", "same": "both ends on one CPU", "free": "no end pinned"}[self.placement]
        return where + self._delay

    @property
    def _delay(self) -> str:
        return f", {self.delay_ms} ms each way" if self.delay_ms else ""

    @property
    def transport(self) -> str:
        if self.carrier == "none":
            return "no wire"
        if self.carrier == "auto":
            return "same host"
        return f"{self.carrier} with TLS" if self.tls else self.carrier


def matrix(cpus: Sequence[int], *, everything: bool) -> tuple[list[Configuration], list[str]]:
    """Returns the configurations for an appliance of our own, and notes about those left out."""
    placements: list[CpuPlacement] = ["split", "same"] if len(cpus) > 1 else ["same"]
    notes = [] if len(cpus) > 1 else [ONE_CPU]
    first = placements[0]
    if everything:
        found = [Configuration("auto", placement=place) for place in placements]
        found += [Configuration(c, tls, place) for place in placements for tls in (False, True) for c in CARRIERS]
        # The cost of a distance shows best if the ends do not take each other's time.
        found += [Configuration(c, tls, first, ms) for ms in DELAYS_MS for tls in (False, True) for c in CARRIERS]
    else:
        found = [
            Configuration("auto", placement=first),
            *(Configuration("direct", placement=place) for place in placements),
            Configuration("grpc", placement=first),
        ]
    if len(cpus) > 1:
        # The usual placement. Only here both ends may wait without sleep: a thread that has one CPU to itself may not.
        found += [Configuration("auto", placement="free"), Configuration("direct", placement="free")]
    return [*found, Configuration("none", placement="same")], notes


def of_another_appliance(*, tls: bool) -> tuple[list[Configuration], list[str]]:
    """Returns the configurations for an appliance that runs already, and notes."""
    return [Configuration(carrier, tls, "free") for carrier in CARRIERS], [
        "no end is pinned: the appliance runs where it runs"
    ]


def ends(placement: CpuPlacement, cpus: Sequence[int]) -> tuple[set[int], set[int]]:
    """Returns the CPUs of the client, and those of the appliance and everything else at the other end."""
    match placement:
        case "split":
            return {cpus[0]}, {cpus[1]}
        case "same":
            return {cpus[0]}, {cpus[0]}
        case "free":
            return set(cpus), set(cpus)
