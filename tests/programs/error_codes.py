"""The code that each of a list of misuses answers, as JSON: to compare drivers with each other."""

import ctypes
import json

driver = ctypes.CDLL("libcuda.so.1")
ptr, u64, by = ctypes.c_void_p, ctypes.c_uint64, ctypes.byref
codes = {"before cuInit: cuCtxGetCurrent": driver.cuCtxGetCurrent(by(ptr()))}
driver.cuInit(0)
codes["no context: cuMemAlloc"] = driver.cuMemAlloc_v2(by(u64()), u64(4096))
codes["no context: cuCtxSynchronize"] = driver.cuCtxSynchronize()
context, stream, event, memory, module = ptr(), ptr(), ptr(), u64(), ptr()
driver.cuDevicePrimaryCtxRetain(by(context), 0)
driver.cuCtxSetCurrent(context)
driver.cuMemAlloc_v2(by(memory), u64(4096))
driver.cuMemFree_v2(memory)
zero = ptr(0)
cases = {
    "cuMemAlloc of 0 bytes": ("cuMemAlloc_v2", by(u64()), u64(0)),
    "cuMemAlloc of 2^60 bytes": ("cuMemAlloc_v2", by(u64()), u64(1 << 60)),
    "cuMemAlloc to NULL": ("cuMemAlloc_v2", zero, u64(16)),
    "cuMemFree twice": ("cuMemFree_v2", memory),
    "cuMemFree of NULL": ("cuMemFree_v2", u64(0)),
    "cuMemFree of 1": ("cuMemFree_v2", u64(1)),
    "cuMemcpyDtoH of freed": ("cuMemcpyDtoH_v2", (ctypes.c_char * 4)(), memory, u64(4)),
    "cuMemcpyHtoD of 0 bytes": ("cuMemcpyHtoD_v2", u64(0), b"", u64(0)),
    "cuMemsetD8 of NULL": ("cuMemsetD8_v2", u64(0), 0, u64(4)),
    "cuModuleLoadData of NULL": ("cuModuleLoadData", by(module), zero),
    "cuModuleLoadData of nonsense": ("cuModuleLoadData", by(module), b".version 7.0\n.target sm_80\nnonsense"),
    "cuModuleGetFunction of NULL": ("cuModuleGetFunction", by(ptr()), zero, b"k"),
    "cuModuleUnload of NULL": ("cuModuleUnload", zero),
    "cuEventRecord of NULL": ("cuEventRecord", zero, zero),
    "cuEventQuery of NULL": ("cuEventQuery", zero),
    "cuEventSynchronize of NULL": ("cuEventSynchronize", zero),
    "cuEventDestroy of NULL": ("cuEventDestroy_v2", zero),
    "cuStreamDestroy of NULL": ("cuStreamDestroy_v2", zero),
    "cuStreamCreate to NULL": ("cuStreamCreate", zero, 0),
    "cuStreamWaitEvent of NULL": ("cuStreamWaitEvent", zero, zero, 0),
    "cuLaunchKernel of NULL": ("cuLaunchKernel", zero, 1, 1, 1, 1, 1, 1, 0, zero, zero, zero),
    "cuDeviceGet of 99": ("cuDeviceGet", by(ctypes.c_int()), 99),
    "cuDeviceGetAttribute of 0": ("cuDeviceGetAttribute", by(ctypes.c_int()), 0, 0),
    "cuCtxPopCurrent to NULL": ("cuCtxPopCurrent_v2", zero),
    "cuGetErrorName of 12345": ("cuGetErrorName", 12345, by(ptr())),
}
for name, (function, *arguments) in cases.items():
    codes[name] = getattr(driver, function)(*arguments)
print(json.dumps(codes))
