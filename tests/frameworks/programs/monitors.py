"""NVML queries of monitoring tools and torch, on a share that this process computes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import cases
import pynvml as nvml
from cuda.bindings import driver

MIB = 1 << 20


def _compute():
    """Makes this a process of the GPU, with 64 MiB."""
    (code,) = driver.cuInit(0)
    assert code == 0, code
    _, device = driver.cuDeviceGet(0)
    _, context = driver.cuDevicePrimaryCtxRetain(device)
    driver.cuCtxSetCurrent(context)
    code, _ = driver.cuMemAlloc(64 * MIB)
    assert code == 0, code
    driver.cuCtxSynchronize()


def torch_queries():
    """`torch.cuda.utilization`, `memory_usage`, `temperature`, `power_draw`, `clock_rate`, `list_gpu_processes`."""
    nvml.nvmlInit()
    assert nvml.nvmlDeviceGetCount() == 1
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    assert 0 <= rates.gpu <= 100 and 0 <= rates.memory <= 100
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    assert memory.total == 2048 * MIB and 64 * MIB <= memory.used <= memory.total
    for query in (
        lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        lambda: nvml.nvmlDeviceGetPowerUsage(handle),
        lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
    ):
        try:
            query()
        except nvml.NVMLError_NotSupported:
            continue
        raise AssertionError("a CPU has none")
    (process,) = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    assert process.pid == os.getpid() and process.usedGpuMemory >= 64 * MIB
    nvml.nvmlShutdown()


def gpustat():
    shown = subprocess.run([sys.executable, "-m", "gpustat", "--json"], check=True, capture_output=True, text=True)
    (gpu,) = json.loads(shown.stdout)["gpus"]
    assert gpu["memory.total"] == 2048 and 64 <= gpu["memory.used"] <= 2048
    assert 0 <= gpu["utilization.gpu"] <= 100 and gpu["temperature.gpu"] is None and gpu["power.draw"] is None
    (process,) = gpu["processes"]
    assert process["pid"] == os.getpid() and process["gpu_memory_usage"] >= 64


def nvitop():
    shown = subprocess.run(
        [sys.executable, "-m", "nvitop", "--once", "--ascii"], check=True, capture_output=True, text=True
    ).stdout
    assert "/ 2048MiB" in shown and "software GPU" in shown
    table = shown[shown.index("Processes:") :]
    rows = [line for line in table.splitlines() if line.startswith("|   0 ")]
    assert len(rows) == 1 and str(os.getpid()) in rows[0], shown


if __name__ == "__main__":
    _compute()
    cases.main(globals())
