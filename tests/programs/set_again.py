"""Gives a kernel as many different limits of shared memory as it is told to, and one that no driver takes."""

import pathlib
import sys

from cu import cu, ok, start

start()
SHARED = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
CARVEOUT = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
most = ok(
    cu.cuDeviceGetAttribute(
        cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, ok(cu.cuDeviceGet(0))
    )
)
module = ok(cu.cuModuleLoadData((pathlib.Path(__file__).parent / "kernels.ptx").read_bytes() + b"\0"))
add = ok(cu.cuModuleGetFunction(module, b"add"))
for turn in range(int(sys.argv[1])):
    ok(cu.cuFuncSetAttribute(add, SHARED, most - turn))
    ok(cu.cuFuncSetAttribute(add, CARVEOUT, turn % 101))
    assert ok(cu.cuFuncGetAttribute(SHARED, add)) == most - turn
assert cu.cuFuncSetAttribute(add, SHARED, most + 1)[0] == cu.CUresult.CUDA_ERROR_INVALID_VALUE
assert cu.cuFuncSetAttribute(add, CARVEOUT, 101)[0] == cu.CUresult.CUDA_ERROR_INVALID_VALUE
