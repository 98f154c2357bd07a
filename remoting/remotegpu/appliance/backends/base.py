"""The interface of a back end for the appliance."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class BackendError(Exception):
    """Raised if there is no usable driver or GPU. The message has the cause."""


@dataclass(frozen=True, slots=True)
class Readings:
    """Current readings of a GPU from NVML. None means not available."""

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
    """One kind of GPUs. Each method names a GPU by the text of its UUID ("GPU-...")."""

    name: str
    driver: Path
    driver_release: str
    opens_files: bool  # whether the driver opens files after its start too, to compile kernels
    computes: bool  # False for a null GPU, which runs no kernel

    def environment(self, overhead_bytes: int) -> Mapping[str, str]:
        """Returns the environment variables with which workers and self-test find driver and GPUs.

        `overhead_bytes` is the memory of one context.
        """

    def shareable(self, uuid: str, total_bytes: int, overhead_bytes: int, sessions: int) -> int:
        """Returns the bytes that leases can have, with room left for `sessions` contexts."""

    def readings(self, uuid: str) -> Readings: ...

    def problem(self, uuid: str) -> str:
        """Returns the reason why the GPU should get no new lease; empty if it is healthy."""

    def tells_recovery(self, uuid: str) -> bool:
        """Whether `problem` can report for this GPU that it needs a reset."""

    def follow_xids(self, tell: Callable[[str, int], None]) -> str:
        """Calls `tell(uuid, number)` for each XID, from any thread, until `close`.

        Returns the reason why a GPU is not watched; empty if all GPUs are.
        """

    def close(self) -> None: ...
