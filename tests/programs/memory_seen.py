"""Prints as JSON what CUDA and NVML say of the memory, and how much can be allocated in pieces of 1 MiB."""

import json

import pynvml
from cu import CudaError, cu, ok, start

pynvml.nvmlInit()
start()
free, total = ok(cu.cuMemGetInfo())
seen = {"total": total, "free": free, "device_total": ok(cu.cuDeviceTotalMem(0))}
seen["nvml_total"] = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).total
seen["count"] = ok(cu.cuDeviceGetCount())
seen["uuid"] = ok(cu.cuDeviceGetUuid(0)).bytes.hex()
seen["nvml_uuid"] = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0))
pieces = []
try:
    while True:
        pieces.append(ok(cu.cuMemAlloc(1 << 20)))
except CudaError as error:
    seen["code"] = error.code
seen["allocated"] = len(pieces) << 20
seen["free_at_end"] = ok(cu.cuMemGetInfo())[0]
for piece in pieces:
    ok(cu.cuMemFree(piece))
ok(cu.cuMemAlloc(len(pieces) << 19))  # half of it again, in one piece: freed memory comes back
print(json.dumps(seen))
