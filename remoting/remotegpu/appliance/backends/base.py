"""The interface of a back end for the appliance."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class BackendError(Exception):
    """There is no usable driver or GPU; the message says why."""


@dataclass(frozen=True, slots=True)
class Readings:
    """NVML's present figures of a GPU; None is not available."""

    gpu_utilization_percent: int | None = None
    memory_utilization_percent: int | None = None
    memory_used_bytes: int | None = None
    temperature_celsius: int | None = None
    power_milliwatt: int | None = None
    power_limit_milliwatt: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_max_generation: int | None = None
    pcie_max_width: int | None = None


class Backend(Protocol):
    """One kind of GPUs. GPUs are named by their UUID text ("GPU-...")."""

    name: str
    driver: Path
    driver_release: str
    opens_files: bool  # the driver opens files after its start too, for compiling
    computes: bool  # a null GPU runs no kernel

    def environment(self, overhead_bytes: int) -> Mapping[str, str]:
        """Returns the variables by which workers and self-test find driver and GPUs.

        A context takes `overhead_bytes`.
        """

    def shareable(self, uuid: str, total_bytes: int, overhead_bytes: int, sessions: int) -> int:
        """Returns the bytes that leases can have, with room left for `sessions` contexts."""

    def readings(self, uuid: str) -> Readings: ...

    def problem(self, uuid: str) -> str:
        """Returns why the GPU should take nothing new; empty if it is healthy."""

    def tells_recovery(self, uuid: str) -> bool:
        """Whether `problem` reports for this GPU that a reset is still to come."""

    def follow_xids(self, tell: Callable[[str, int], None]) -> str:
        """Calls `tell` with each XID, (UUID, number), from any thread until `close`.

        Returns why some GPU is not followed; empty if all are.
        """

    def close(self) -> None: ...
