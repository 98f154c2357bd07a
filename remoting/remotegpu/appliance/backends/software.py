"""Software GPUs and null GPUs, of fixed number and size. Each worker process has GPU memory of its own."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from remotegpu.api import names
from remotegpu.appliance.backends.base import Readings
from remotegpu.appliance.backends.cpu_usage import CpuUsage
from remotegpu.appliance.settings import Settings

# The same PCIe link as the native software GPU's (`remoting/softgpu/src/process/device.rs`).
_PCIE_GENERATION, _PCIE_WIDTH = 4, 16


class SoftwareBackend:
    # Three numbers, because XLA parses three.
    driver_release = "580.0.0"
    opens_files = False

    def __init__(self, settings: Settings, driver: Path) -> None:
        self.name = "null" if settings.profile.is_null else "software"
        self.computes = not settings.profile.is_null
        self.driver = driver
        self._settings = settings
        self._usage = CpuUsage()

    def environment(self, overhead_bytes: int) -> dict[str, str]:
        """Sets each GPU's memory to all shares plus one context, since each process simulates GPUs of its own."""
        settings = self._settings
        environment = {
            names.SOFTGPU_DEVICES_ENV: str(settings.gpus),
            names.SOFTGPU_UUIDS_ENV: ",".join(_uuid(settings, index) for index in range(settings.gpus)),
            names.SOFTGPU_MEMORY_ENV: str(settings.memory_bytes + overhead_bytes),
            names.SOFTGPU_PROFILE_ENV: str(settings.profile),
        }
        for name in (names.NULL_RULES_ENV, names.NULL_TALLY_ENV):
            if settings.profile.is_null and name in os.environ:
                environment[name] = os.environ[name]
        if settings.threads is not None:
            environment[names.SOFTGPU_THREADS_ENV] = str(settings.threads)
        return environment

    def shareable(self, uuid: str, total_bytes: int, overhead_bytes: int, sessions: int) -> int:
        del uuid, overhead_bytes, sessions
        return min(total_bytes, self._settings.memory_bytes)

    def readings(self, uuid: str) -> Readings:
        """Returns the CPUs' load: all GPUs here are made of the same CPUs."""
        del uuid
        return Readings(
            gpu_utilization_percent=self._usage.percent(),
            pcie_generation=_PCIE_GENERATION,
            pcie_width=_PCIE_WIDTH,
            pcie_max_generation=_PCIE_GENERATION,
            pcie_max_width=_PCIE_WIDTH,
        )

    def problem(self, uuid: str) -> str:
        del uuid
        return ""

    def tells_recovery(self, uuid: str) -> bool:
        del uuid
        return False

    def follow_xids(self, tell: Callable[[str, int], None]) -> str:
        """Does nothing: software GPUs raise no XID."""
        del tell
        return ""

    def close(self) -> None:
        """Does nothing: no file is open."""


def _uuid(settings: Settings, index: int) -> str:
    """Returns a UUID that differs for every appliance of a pool, and is the same after a restart."""
    named = (
        settings.kubernetes.name if settings.kubernetes else f"{os.uname().nodename} {settings.host}:{settings.port}"
    )
    place = f"{named} {index}"
    return hashlib.sha256(place.encode()).hexdigest()[:32]
