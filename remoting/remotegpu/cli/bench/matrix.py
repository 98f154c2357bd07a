"""Chooses the configurations to measure. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

# "none": the measured process uses the back end directly, without a wire.
# "auto": a Unix socket and shared memory, since both ends are on one machine; the reference is a plain Unix socket.
Carrier = Literal["auto", "direct", "grpc", "none"]
# The CPUs of client and appliance: two, one, or the scheduler's choice.
CpuPlacement = Literal["split", "same", "free"]

CARRIERS: Final[tuple[Carrier, ...]] = ("direct", "grpc")
DELAYS_MS: Final = (1, 10)
ONE_CPU: Final = "only one CPU may be used here: the ends cannot be on two"


@dataclass(frozen=True, slots=True)
class Configuration:
    carrier: Carrier
    tls: bool = False
    placement: CpuPlacement = "split"
    # The delay of the proxy in each direction.
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
    """Returns the configurations for an appliance that the benchmark starts, and notes about omitted ones."""
    placements: list[CpuPlacement] = ["split", "same"] if len(cpus) > 1 else ["same"]
    notes = [] if len(cpus) > 1 else [ONE_CPU]
    first = placements[0]
    if everything:
        found = [Configuration("auto", placement=place) for place in placements]
        found += [Configuration(c, tls, place) for place in placements for tls in (False, True) for c in CARRIERS]
        # Delays are measured only with both ends on different CPUs, where they do not compete.
        found += [Configuration(c, tls, first, ms) for ms in DELAYS_MS for tls in (False, True) for c in CARRIERS]
    else:
        found = [
            Configuration("auto", placement=first),
            *(Configuration("direct", placement=place) for place in placements),
            Configuration("grpc", placement=first),
        ]
    if len(cpus) > 1:
        # The usual placement. Only here both ends may poll instead of sleeping: a thread pinned to one CPU may not.
        found += [Configuration("auto", placement="free"), Configuration("direct", placement="free")]
    return [*found, Configuration("none", placement="same")], notes


def of_another_appliance(*, tls: bool) -> tuple[list[Configuration], list[str]]:
    """Returns the configurations for a running appliance, and notes."""
    return [Configuration(carrier, tls, "free") for carrier in CARRIERS], [
        "no end is pinned: the appliance runs where it runs"
    ]


def ends(placement: CpuPlacement, cpus: Sequence[int]) -> tuple[set[int], set[int]]:
    """Returns the CPUs of the client, and the CPUs of the appliance and all other programs at its end."""
    match placement:
        case "split":
            return {cpus[0]}, {cpus[1]}
        case "same":
            return {cpus[0]}, {cpus[0]}
        case "free":
            return set(cpus), set(cpus)
