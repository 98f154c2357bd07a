"""An ordinary CUDA program, for `helm test`: adds two vectors on the GPU and compares with the sums made here."""

import array
import ctypes
import sys

PTX = b"""
.version 7.0
.target sm_70
.address_size 64

.visible .entry add(.param .u64 left, .param .u64 right, .param .u64 result, .param .u32 length)
{
    .reg .pred %outside;
    .reg .b32 %thread, %block, %threads, %index, %length;
    .reg .f32 %a, %b;
    .reg .b64 %left, %right, %result, %offset;
    ld.param.u64 %left, [left];
    ld.param.u64 %right, [right];
    ld.param.u64 %result, [result];
    ld.param.u32 %length, [length];
    mov.u32 %thread, %tid.x;
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mad.lo.u32 %index, %block, %threads, %thread;
    setp.ge.u32 %outside, %index, %length;
    @%outside bra done;
    mul.wide.u32 %offset, %index, 4;
    add.u64 %left, %left, %offset;
    add.u64 %right, %right, %offset;
    add.u64 %result, %result, %offset;
    ld.global.f32 %a, [%left];
    ld.global.f32 %b, [%right];
    add.f32 %a, %a, %b;
    st.global.f32 [%result], %a;
done:
    ret;
}
"""
LENGTH = 100_000

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code:
        text = ctypes.c_char_p()
        cuda.cuGetErrorString(code, ctypes.byref(text))
        sys.exit(f"{name} failed with {code}: {(text.value or b'unknown error').decode()}")


def allocated(size):
    address = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
    return address


device = ctypes.c_int()
context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
name = ctypes.create_string_buffer(100)
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDeviceGetName", name, len(name), device)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
print(f"{name.value.decode()}, {total.value / 2**20:.0f} MiB")
call("cuModuleLoadData", ctypes.byref(module), PTX)
call("cuModuleGetFunction", ctypes.byref(function), module, b"add")

left = array.array("f", range(LENGTH))
right = array.array("f", (2 * i for i in range(LENGTH)))
result = array.array("f", bytes(4 * LENGTH))
size = 4 * LENGTH
addresses = [allocated(size) for _ in range(3)]
for address, values in zip(addresses, (left, right), strict=False):
    call("cuMemcpyHtoD_v2", address, (ctypes.c_char * size).from_buffer(values), ctypes.c_size_t(size))
arguments = [*addresses, ctypes.c_uint32(LENGTH)]
pointers = (ctypes.c_void_p * 4)(*(ctypes.addressof(argument) for argument in arguments))
call("cuLaunchKernel", function, (LENGTH + 255) // 256, 1, 1, 256, 1, 1, 0, None, pointers, None)
call("cuMemcpyDtoH_v2", (ctypes.c_char * size).from_buffer(result), addresses[2], ctypes.c_size_t(size))

wrong = sum(result[i] != left[i] + right[i] for i in range(LENGTH))
if wrong:
    sys.exit(f"{wrong} of {LENGTH} sums are wrong")
print(f"{LENGTH} sums are right")
