"""NVIDIA GPUs: the real libcuda found by its path, inventory and health from NVML."""

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pynvml

from remotegpu.api.names import VISIBLE_DEVICES_ENV
from remotegpu.appliance.backends.base import BackendError, Readings
from remotegpu.appliance.backends.nvml_events import XidEvents
from remotegpu.appliance.settings import Settings

_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib")

# NVML_GPU_RECOVERY_ACTION_*
_RECOVERIES: Final = {
    1: "reset the GPU",
    2: "reboot the node",
    3: "end peer-to-peer transfers",
    4: "drain the node and reset the GPU",
    5: "recover the IMEX domain",
    6: "reset the bus",
    7: "reboot the system",
}


class CudaBackend:
    name = "cuda"
    opens_files = True
    computes = True

    def __init__(self, settings: Settings, excluded: Path) -> None:
        self.driver = settings.driver or find_driver(excluded)
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise BackendError(f"NVML does not start: {error}; is the NVIDIA driver loaded?") from None
        self.driver_release = _text(pynvml.nvmlSystemGetDriverVersion())
        self._handles = dict(_devices())
        # Memory that other programs use at the start cannot be shared.
        self._used_before = {uuid: _memory_used(handle) or 0 for uuid, handle in self._handles.items()}
        self._events: XidEvents | None = None

    def environment(self, overhead_bytes: int) -> dict[str, str]:
        """Lets workers find the driver's helper libraries, and disables the kernel cache that tenants would share."""
        del overhead_bytes
        environment = {"LD_LIBRARY_PATH": str(self.driver.parent), "CUDA_CACHE_DISABLE": "1"}
        # Limits the appliance to these GPUs. Each worker gets its own list instead.
        if (visible := os.environ.get(VISIBLE_DEVICES_ENV)) is not None:
            environment[VISIBLE_DEVICES_ENV] = visible
        return environment

    def shareable(self, uuid: str, total_bytes: int, overhead_bytes: int, sessions: int) -> int:
        return max(0, total_bytes - self._used_before.get(uuid, 0) - overhead_bytes * sessions)

    def readings(self, uuid: str) -> Readings:
        handle = self._handles.get(uuid)
        if handle is None:
            return Readings()
        rates = _ask(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
        return Readings(
            gpu_utilization_percent=None if rates is None else int(rates.gpu),
            memory_utilization_percent=None if rates is None else int(rates.memory),
            memory_used_bytes=_memory_used(handle),
            temperature_celsius=_number(lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
            power_milliwatt=_number(lambda: pynvml.nvmlDeviceGetPowerUsage(handle)),
            power_limit_milliwatt=_number(lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle)),
            sm_clock_mhz=_number(lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
            memory_clock_mhz=_number(lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)),
            pcie_generation=_number(lambda: pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
            pcie_width=_number(lambda: pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle)),
            pcie_max_generation=_number(lambda: pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)),
            pcie_max_width=_number(lambda: pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle)),
        )

    def problem(self, uuid: str) -> str:
        handle = self._handles.get(uuid)
        if handle is None:
            return "NVML does not know this GPU"
        try:
            pynvml.nvmlDeviceGetMemoryInfo(handle)
            errors = _supported(
                lambda: pynvml.nvmlDeviceGetTotalEccErrors(
                    handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
                )
            )
            if errors:
                return f"{errors} uncorrected ECC errors since the driver was loaded: reset the GPU"
            remapped = _supported(lambda: pynvml.nvmlDeviceGetRemappedRows(handle))
            if remapped is not None and remapped[3]:
                return "a row of its memory could not be remapped: replace the GPU"
            if action := _recovery_action(handle):
                return f"the driver wants a recovery: {_RECOVERIES.get(action, f'action {action}')}"
        except pynvml.NVMLError as error:
            return f"NVML: {error}"
        return ""

    def tells_recovery(self, uuid: str) -> bool:
        handle = self._handles.get(uuid)
        return handle is not None and _ask(lambda: _recovery_action(handle)) is not None

    def follow_xids(self, tell: Callable[[str, int], None]) -> str:
        self._events = XidEvents(self._handles, tell)
        return self._events.unwatched

    def close(self) -> None:
        if self._events is not None:
            self._events.close()
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def find_driver(excluded: Path) -> Path:
    """Returns the real libcuda.so.1, not the client that may come before it on LD_LIBRARY_PATH."""
    folders = [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *_FOLDERS]
    candidates = [Path(folder) / "libcuda.so.1" for folder in folders if folder] + _known_to_the_loader()
    for path in candidates:
        if path.exists() and not path.resolve().is_relative_to(excluded.resolve()):
            return path.resolve()
    raise BackendError(
        f"no libcuda.so.1 in {', '.join(_FOLDERS)} or the loader's cache: is the NVIDIA driver installed? "
        "Name it with --driver, or use --backend software"
    )


def _known_to_the_loader() -> list[Path]:
    """Returns paths of libcuda.so.1 from `ldconfig -p`, whose lines are "libcuda.so.1 (libc6,x86-64) => /path"."""
    try:
        listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return []
    entries = (line.partition(" => ") for line in listed.splitlines())
    return [Path(path) for name, _, path in entries if name.strip().startswith("libcuda.so.1 ") and "x86-64" in name]


def _devices() -> Iterator[tuple[str, Any]]:
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        yield _text(pynvml.nvmlDeviceGetUUID(handle)), handle


def _memory_used(handle: Any) -> int | None:
    """Returns the used memory without the driver's own reserve, which CUDA's total excludes too."""
    return _number(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).used)


def _recovery_action(handle: Any) -> int | None:
    """Returns the NVML_GPU_RECOVERY_ACTION, 0 for none; None if this driver does not report it."""
    fields = _supported(lambda: pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]))
    if fields is None or fields[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    # Drivers differ in the width of the number; its lowest bytes come first.
    return int(fields[0].value.uiVal)


def _supported(question: Callable[[], Any]) -> Any:
    """Returns the answer of NVML; None if this GPU or driver does not support it. Raises NVMLError for other errors."""
    try:
        return question()
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        return None


def _ask(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except pynvml.NVMLError:
        return None


def _number(question: Callable[[], Any]) -> int | None:
    answer = _ask(question)
    return None if answer is None else int(answer)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
