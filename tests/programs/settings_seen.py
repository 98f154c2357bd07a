"""Prints as JSON what CUDA's environment variables change: the codes of a launch that faults and of the wait after it,
when modules are loaded, and the PCI addresses of the devices as CUDA and as NVML count them."""

import json

import pynvml as nvml
from cu import cu, kernels, ok, start, u32, u64

start()
add = kernels()["add"]
nowhere = (u64(8), u64(8), u64(8), u32(32))
arguments = (tuple(a.value for a in nowhere), tuple(type(a) for a in nowhere))
launch = cu.cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 0, 0, arguments, 0)[0]
wait = cu.cuCtxSynchronize()[0]
devices = [ok(cu.cuDeviceGet(i)) for i in range(ok(cu.cuDeviceGetCount()))]
nvml.nvmlInit()
handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
print(
    json.dumps(
        {
            "launch": int(launch),
            "wait": int(wait),
            "loading": ok(cu.cuModuleGetLoadingMode()).name.removeprefix("CU_MODULE_"),
            "cuda": [ok(cu.cuDeviceGetPCIBusId(32, device)).partition(b"\0")[0].decode().lower() for device in devices],
            "nvml": [nvml.nvmlDeviceGetPciInfo(handle).busIdLegacy.lower() for handle in handles],
        }
    )
)
