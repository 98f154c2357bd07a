"""Allocates 60 GB, fills and copies them, and prints what reads return and how much memory the process took."""

import json
import pathlib
import resource
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "programs"))

import numpy as np
from cu import cu, download, ok, start

GB = 1 << 30
start()
total = int(ok(cu.cuDeviceTotalMem(0)))
one, other = ok(cu.cuMemAlloc(30 * GB)), ok(cu.cuMemAlloc(30 * GB))
ok(cu.cuMemsetD32(one, 0x01020304, 30 * GB // 4))
ok(cu.cuMemcpyDtoD(other, one, 30 * GB))
filled = download(int(one) + 7 * GB, 4).tolist()
ok(cu.cuMemsetD8(int(one) + 12345, 7, 1000))
small = download(int(one) + 12344, 1002, np.uint8).tolist()
ok(cu.cuMemcpyHtoD(int(other) + 5 * GB, np.arange(1 << 20, dtype=np.uint32), 4 << 20))
sent = int(download(int(other) + 5 * GB, 1 << 20).sum())
ok(cu.cuCtxSynchronize())
taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
print(json.dumps({"total": total, "filled": filled, "small": small, "sent": sent, "taken": taken}))
