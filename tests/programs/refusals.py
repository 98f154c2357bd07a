"""Asks for everything that the caller lists, and prints what each call answers as JSON: `test_refusals.py`."""

import ctypes
import json
import pathlib
import sys

asked = json.loads(pathlib.Path(sys.argv[1]).read_text())
cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
NOTHING = (ctypes.c_void_p(),) * 12
room = ctypes.create_string_buffer(1 << 16)
address, context, module, function, memory, stream, pool, managed, graph, node = (ctypes.c_void_p() for _ in range(10))


def ok(code):
    assert code == 0, code


ok(cuda.cuInit(0))
ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
ok(cuda.cuCtxSetCurrent(context))
ptx = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n"
ok(cuda.cuModuleLoadData(ctypes.byref(module), ptx))
ok(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"nothing"))
ok(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(4096)))
ok(cuda.cuMemAllocManaged(ctypes.byref(managed), ctypes.c_size_t(4096), 1))
ok(cuda.cuStreamCreate(ctypes.byref(stream), 0))
ok(cuda.cuDeviceGetDefaultMemPool(ctypes.byref(pool), 0))
ok(nvml.nvmlInit_v2())
card = ctypes.c_void_p()
ok(nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(card)))

# Each is asked about something that has all attributes; a setter gets what its getter has just answered.
value = ctypes.c_size_t.from_buffer(room)
BY_ENUMERATION = {
    "cuDeviceGetAttribute": lambda which: cuda.cuDeviceGetAttribute(room, which, 0),
    "cuFuncGetAttribute": lambda which: cuda.cuFuncGetAttribute(room, which, function),
    "cuPointerGetAttribute": lambda which: cuda.cuPointerGetAttribute(room, which, memory),
    "cuStreamGetAttribute": lambda which: cuda.cuStreamGetAttribute(stream, which, room),
    "cuMemPoolGetAttribute": lambda which: cuda.cuMemPoolGetAttribute(pool, which, room),
    "cuCtxGetLimit": lambda which: cuda.cuCtxGetLimit(room, which),
    "cuCtxSetLimit": lambda which: cuda.cuCtxGetLimit(room, which) or cuda.cuCtxSetLimit(which, value),
    "cuMemRangeGetAttribute": lambda which: cuda.cuMemRangeGetAttribute(
        room, ctypes.c_size_t(4), which, managed, ctypes.c_size_t(4096)
    ),
    "cuMemAdvise": lambda which: cuda.cuMemAdvise(managed, ctypes.c_size_t(4096), which, 0),
    "cuDeviceGetExecAffinitySupport": lambda which: cuda.cuDeviceGetExecAffinitySupport(room, which, 0),
}


def slot(table, index):
    ok(cuda.cuGetExportTable(ctypes.byref(address), bytes.fromhex(table)))
    entry = ctypes.cast(address, ctypes.POINTER(ctypes.c_void_p))[index]
    return ctypes.CFUNCTYPE(ctypes.c_int)(entry)()


def find(name):
    return cuda.cuGetProcAddress_v2(name.encode(), ctypes.byref(address), 12090, ctypes.c_uint64(0), room)


print(
    json.dumps(
        {
            "functions": {name: getattr(cuda, name)(*NOTHING) for name in asked["functions"]},
            "nvml": {name: getattr(nvml, name)(card, *NOTHING) for name in asked["nvml"]},
            "values": {
                name: {which: call(which) for which in asked["values"][name]} for name, call in BY_ENUMERATION.items()
            },
            "slots": [slot(*each) for each in asked["slots"]],
            "names": [find(name) for name in asked["names"]],
        }
    )
)
