"""Tests one GPU in a separate process: runs a kernel and copies, checks results, measures the memory of a context.

`python -m remotegpu.appliance.gpus.selftest [--null]` prints one JSON object, {"overhead_bytes": ...} or
{"error": ...}. The environment of the process selects the driver, since the loader finds libcuda.so.1 by it. On a null
GPU (`--null`) the same calls must succeed, and the kernel must have written nothing.
"""

import ctypes
import json
import os
import sys
from typing import Any

# y[i] = 3 * i + x[i], written for this test. Any GPU of the last ten years runs it.
_PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry selftest(.param .u64 x, .param .u64 y, .param .u32 n)
{
    .reg .pred %p;
    .reg .b32 %r<8>;
    .reg .b64 %d<8>;
    ld.param.u64 %d1, [x];
    ld.param.u64 %d2, [y];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p, %r5, %r1;
    @%p bra DONE;
    cvta.to.global.u64 %d1, %d1;
    cvta.to.global.u64 %d2, %d2;
    mul.wide.u32 %d3, %r5, 4;
    add.s64 %d1, %d1, %d3;
    add.s64 %d2, %d2, %d3;
    ld.global.u32 %r6, [%d1];
    mad.lo.u32 %r7, %r5, 3, %r6;
    st.global.u32 [%d2], %r7;
DONE:
    ret;
}
\0"""
_COUNT = 1000
_THREADS = 128


def measure(*, null: bool) -> int:
    """Runs the test on device 0. Returns the bytes that a context takes. Raises RuntimeError if the test fails."""
    from cuda.bindings import driver  # noqa: PLC0415 (loads libcuda: only in this process)

    def call(result: tuple[Any, ...]) -> Any:
        code, *values = result
        if code != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{code.name} ({int(code)})")
        return values[0] if len(values) == 1 else values

    call(driver.cuInit(0))
    device = call(driver.cuDeviceGet(0))
    total = call(driver.cuDeviceTotalMem(device))
    free_before = _free_before_context(total)
    context = call(driver.cuDevicePrimaryCtxRetain(device))
    call(driver.cuCtxSetCurrent(context))
    module = call(driver.cuModuleLoadData(_PTX))
    kernel = call(driver.cuModuleGetFunction(module, b"selftest"))
    array = ctypes.c_uint32 * _COUNT
    given, found = array(*range(7, 7 + _COUNT)), array()
    size = ctypes.sizeof(array)
    x, y = call(driver.cuMemAlloc(size)), call(driver.cuMemAlloc(size))
    call(driver.cuMemcpyHtoD(x, ctypes.addressof(given), size))
    arguments = ((int(x), int(y), _COUNT), (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32))
    blocks = -(-_COUNT // _THREADS)
    call(driver.cuLaunchKernel(kernel, blocks, 1, 1, _THREADS, 1, 1, 0, 0, arguments, 0))
    call(driver.cuCtxSynchronize())
    call(driver.cuMemcpyDtoH(ctypes.addressof(found), y, size))
    wrong = [i for i in range(_COUNT) if found[i] != (0 if null else 3 * i + 7 + i)]
    if wrong:
        raise RuntimeError(f"a kernel computed {len(wrong)} of {_COUNT} values wrong, the first at {wrong[0]}")
    free_after, _ = call(driver.cuMemGetInfo())
    overhead: int = max(0, free_before - free_after)
    call(driver.cuDevicePrimaryCtxRelease(device))
    return overhead


def _free_before_context(total: int) -> int:
    """Returns the free bytes before a context exists, from NVML: CUDA reports them only inside a context."""
    import pynvml  # noqa: PLC0415

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(os.environ["CUDA_VISIBLE_DEVICES"])
        used = int(pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).used)
    except pynvml.NVMLError:
        # Without NVML, all memory that is not free inside the context counts as overhead.
        used = 0
    return total - used


def main() -> None:
    try:
        result: dict[str, object] = {"overhead_bytes": measure(null="--null" in sys.argv)}
    except Exception as error:  # any error is the result of the test
        result = {"error": f"{type(error).__name__}: {error}" if not isinstance(error, RuntimeError) else str(error)}
    print(json.dumps(result))  # noqa: T201
    sys.stdout.flush()
    # Skips the exit handlers of driver and bindings: a crash in them must not spoil the result.
    os._exit(0)


if __name__ == "__main__":
    main()
