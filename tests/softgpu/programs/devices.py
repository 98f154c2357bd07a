"""Prints the driver's and NVML's answers about the devices, as JSON."""

from __future__ import annotations

import ctypes
import json

from softcuda import code, i32, new, ok, ref, size, u64

nvml = ctypes.CDLL("libnvidia-ml.so.1")


def device(ordinal: int) -> dict[str, object]:
    name, uuid = ctypes.create_string_buffer(100), ctypes.create_string_buffer(16)
    ok("cuDeviceGetName", name, 100, ordinal)
    ok("cuDeviceGetUuid_v2", uuid, ordinal)
    attribute = {n: new("cuDeviceGetAttribute", n, ordinal, kind=i32).value for n in (33, 75, 76)}
    return {
        "name": name.value.decode(),
        "uuid": uuid.raw.hex(),
        "bus": attribute[33],
        "memory": new("cuDeviceTotalMem_v2", ordinal, kind=size).value,
        "capability": [attribute[75], attribute[76]],
    }


version = i32()
ok("cuDriverGetVersion", ref(version))
started = code("cuInit", 0)
if started:
    print(json.dumps({"code": started}))
else:
    count = new("cuDeviceGetCount", kind=i32).value
    all_, handle, text, memory = i32(), ctypes.c_void_p(), ctypes.create_string_buffer(96), (u64 * 3)()
    assert nvml.nvmlDeviceGetCount_v2(ref(all_)) == 1, "not initialised"
    assert nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetCount_v2(ref(all_)) == 0
    assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ref(handle)) == 0
    assert nvml.nvmlDeviceGetUUID(handle, text, 96) == 0 and nvml.nvmlDeviceGetMemoryInfo(handle, memory) == 0
    assert nvml.nvmlDeviceGetName(ctypes.c_void_p(1234), text, 0) == 2
    assert nvml.nvmlShutdown() == 0 and nvml.nvmlShutdown() == 1
    answer = {
        "version": version.value,
        "devices": [device(i) for i in range(count)],
        "nvml": all_.value,
        "nvml_uuid": text.value.decode(),
        "nvml_memory": memory[0],
    }
    print(json.dumps(answer))
