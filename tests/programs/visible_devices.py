"""Devices left by CUDA_VISIBLE_DEVICES: prints the code of cuInit, the number of devices and their UUIDs."""

import json

from cuda.bindings import driver as cu

code = int(cu.cuInit(0)[0])
result, count = cu.cuDeviceGetCount()
uuids = [cu.cuDeviceGetUuid(i)[1].bytes.hex() for i in range(count if not int(result) else 0)]
print(json.dumps({"code": code, "count": count if not int(result) else 0, "uuids": uuids}))
