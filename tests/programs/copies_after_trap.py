"""A kernel traps. All copies after it fail with its code, however many, and bring no bytes; prints "ok"."""

import numpy as np
from cu import code_of, cu, ok, start, upload

LAUNCH_FAILED = 719
PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry end_badly() { trap; ret; }\0"""

start()
result = np.zeros(1 << 20, np.uint32)
device = upload(np.ones_like(result))
ok(cu.cuMemcpyDtoH(result, device, result.nbytes))
assert result.all()
result[:] = 0
function = ok(cu.cuModuleGetFunction(ok(cu.cuModuleLoadData(PTX)), b"end_badly"))
ok(cu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))
assert code_of(cu.cuCtxSynchronize) == LAUNCH_FAILED
for _ in range(12):
    assert code_of(cu.cuMemcpyDtoH, result, device, result.nbytes) == LAUNCH_FAILED
    assert code_of(cu.cuMemcpyHtoD, device, result, result.nbytes) == LAUNCH_FAILED
assert not result.any()
print("ok")
