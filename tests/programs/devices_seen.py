"""Prints as JSON what NVML and CUDA say of each device, and which processes NVML lists."""

import json
import os
import time

import pynvml as nvml
from cu import cu, ok, start


def text(value):
    return value.decode() if isinstance(value, bytes) else value


def by_nvml(index):
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    pci = nvml.nvmlDeviceGetPciInfo(handle)
    uuid = text(nvml.nvmlDeviceGetUUID(handle))
    same = [
        nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByUUID(uuid)),
        nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByPciBusId(text(pci.busId))),
    ]
    return {
        "name": text(nvml.nvmlDeviceGetName(handle)),
        "uuid": uuid.removeprefix("GPU-").replace("-", ""),
        "pci": [pci.domain, pci.bus, pci.device],
        "memory": nvml.nvmlDeviceGetMemoryInfo(handle).total,
        "capability": list(nvml.nvmlDeviceGetCudaComputeCapability(handle)),
        "found_again": same,
    }


def by_cuda(index):
    device = ok(cu.cuDeviceGet(index))
    attribute = cu.CUdevice_attribute
    read = [
        attribute.CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID,
        attribute.CU_DEVICE_ATTRIBUTE_PCI_BUS_ID,
        attribute.CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID,
        attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    ]
    values = [ok(cu.cuDeviceGetAttribute(number, device)) for number in read]
    return {
        "name": text(ok(cu.cuDeviceGetName(96, device)).partition(b"\0")[0]),
        "uuid": ok(cu.cuDeviceGetUuid(device)).bytes.hex(),
        "pci": values[:3],
        "memory": ok(cu.cuDeviceTotalMem(device)),
        "capability": values[3:],
        "found_again": [index, index],
    }


nvml.nvmlInit()
count = nvml.nvmlDeviceGetCount()
seen = {"pid": os.getpid(), "nvml": [by_nvml(i) for i in range(count)]}
if os.environ.get("CUDA_VISIBLE_DEVICES") != "":
    start()
    seen["cuda"] = [by_cuda(i) for i in range(ok(cu.cuDeviceGetCount()))]
    kept = ok(cu.cuMemAlloc(8 << 20))
    time.sleep(0.2)  # NVML's values may be 100 ms old
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    seen["processes"] = [(p.pid, p.usedGpuMemory) for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    seen["used"] = nvml.nvmlDeviceGetMemoryInfo(handle).used
print(json.dumps(seen))
