"""NVML as tools use it, before and after CUDA takes memory."""

from __future__ import annotations

import os

import pynvml
from softcuda import alloc, start

pynvml.nvmlInit()
card = pynvml.nvmlDeviceGetHandleByIndex(0)
assert pynvml.nvmlDeviceGetCount() == 1
assert pynvml.nvmlDeviceGetMemoryInfo(card).used == 0
assert pynvml.nvmlDeviceGetComputeRunningProcesses(card) == []
uuid = pynvml.nvmlDeviceGetUUID(card)
assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == 0
bus = pynvml.nvmlDeviceGetPciInfo(card).busId
assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByPciBusId(bus)) == 0
assert pynvml.nvmlSystemGetCudaDriverVersion() == 13040
assert pynvml.nvmlDeviceGetUtilizationRates(card).gpu == 0
assert pynvml.nvmlDeviceGetMigMode(card) == [0, 0]
for question in (
    lambda: pynvml.nvmlDeviceGetTemperature(card, pynvml.NVML_TEMPERATURE_GPU),
    lambda: pynvml.nvmlDeviceGetPowerUsage(card),
    lambda: pynvml.nvmlDeviceGetTotalEccErrors(card, 0, 0),
):
    try:
        question()
    except pynvml.NVMLError_NotSupported:
        continue
    raise AssertionError("an answer that cannot be true")

start()
alloc(1 << 20)
memory = pynvml.nvmlDeviceGetMemoryInfo(card, pynvml.nvmlMemory_v2)
assert (memory.total, memory.used, memory.free) == (64 << 20, 1 << 20, 63 << 20)
(process,) = pynvml.nvmlDeviceGetComputeRunningProcesses(card)
assert (process.pid, process.usedGpuMemory) == (os.getpid(), 1 << 20)
pynvml.nvmlShutdown()
try:
    pynvml.nvmlDeviceGetCount()
except pynvml.NVMLError_Uninitialized:
    print("ok")
