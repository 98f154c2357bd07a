"""Two processes of one lease give each other memory by cuIpc*; each checks what the other wrote. Prints "shared"."""

import ctypes
import multiprocessing

import numpy as np
from cu import code_of, cu, download, kernels, launch, ok, start, u32, u64, upload

COUNT = 3000
FLAG = cu.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
FIRST, SECOND = np.arange(COUNT, dtype=np.uint32), np.full(COUNT, 7, np.uint32)
INVALID_VALUE, INVALID_CONTEXT, INVALID_HANDLE = 1, 201, 400


def handle_of(pointer):
    return ctypes.string_at(ok(cu.cuIpcGetMemHandle(pointer)).getPtr(), 64)


def opening(reserved, flag=FLAG):
    handle = cu.CUipcMemHandle()
    ctypes.memmove(handle.getPtr(), reserved, 64)
    return cu.cuIpcOpenMemHandle(handle, flag)


def opened(reserved):
    return ok(opening(reserved))


class Reserved(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]


def opened_by_the_old_form(reserved):
    """By the symbol of CUDA 4.1, which the bindings do not know."""
    address = ctypes.c_uint64()
    old = ctypes.CDLL("libcuda.so.1").cuIpcOpenMemHandle
    old.argtypes = [ctypes.POINTER(ctypes.c_uint64), Reserved, ctypes.c_uint]
    assert old(address, Reserved.from_buffer_copy(reserved), int(FLAG)) == 0
    return address.value


def export(pipe):
    start()
    pointers = [upload(FIRST), upload(SECOND)]
    handles = [handle_of(pointer) for pointer in pointers]
    inside = cu.CUdeviceptr(int(pointers[0]) + 4)
    assert handle_of(inside) == handles[0]
    assert code_of(opening, handles[0]) == INVALID_CONTEXT, "a process opens what it exported itself"
    host = ok(cu.cuMemHostAlloc(4096, 0))
    assert code_of(cu.cuIpcGetMemHandle, host) == INVALID_VALUE
    pipe.send(handles)
    assert pipe.recv() == "written"
    assert np.array_equal(download(pointers[0], COUNT), FIRST + SECOND)
    ok(cu.cuMemFree(pointers[0]))
    ok(cu.cuMemFree(pointers[1]))
    pipe.send("freed")
    assert pipe.recv() == "closed"
    # What was freed is a place for other memory again.
    for value in range(4):
        assert (download(upload(np.full(1 << 20, value, np.uint32)), 1 << 20) == value).all()


if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=export, args=(theirs,))
    process.start()
    theirs.close()
    start()
    functions = kernels()
    handles = ours.recv()

    assert code_of(opening, handles[0], 0) == INVALID_VALUE, "without the flag"
    assert code_of(opening, b"\0" * 64) == INVALID_HANDLE
    stranger = handles[0][:8] + bytes(16) + handles[0][24:]
    assert code_of(opening, stranger) == INVALID_HANDLE, "nobody exported this"

    first, second = map(opened, handles)
    assert int(opened(handles[0])) == int(first), "opened again"
    assert opened_by_the_old_form(handles[1]) == int(second)
    assert np.array_equal(download(first, COUNT), FIRST)
    assert np.array_equal(download(second, COUNT), SECOND)
    base, size = ok(cu.cuMemGetAddressRange(int(second) + 4))
    assert (int(base), size) == (int(second), COUNT * 4)
    kind = ok(cu.cuPointerGetAttribute(cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, first))
    assert kind == cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
    launch(functions["add"], 12, 256, [u64(int(first)), u64(int(second)), u64(int(first)), u32(COUNT)])
    ok(cu.cuCtxSynchronize())
    ours.send("written")
    assert ours.recv() == "freed"

    assert np.array_equal(download(first, COUNT), FIRST + SECOND), "the exporter's free leaves the importer's memory"
    assert code_of(cu.cuMemFree, first) == INVALID_VALUE, "only the exporter frees"
    ok(cu.cuIpcCloseMemHandle(first))
    assert download(first, 1)[0] == 7, "it was opened twice"
    ok(cu.cuIpcCloseMemHandle(first))
    assert code_of(cu.cuIpcCloseMemHandle, first) == INVALID_VALUE
    ok(cu.cuIpcCloseMemHandle(second))
    ok(cu.cuIpcCloseMemHandle(second))
    assert code_of(cu.cuMemcpyDtoH, np.empty(1, np.uint32), second, 4) == INVALID_VALUE
    ours.send("closed")
    process.join()
    assert process.exitcode == 0, process.exitcode
    print("shared")
