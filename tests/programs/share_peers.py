"""Two processes of a lease, each with a device of its own, as the ranks of a tensor-parallel server: each opens the
other's memory on its own device and its kernels read it. Prints "shared"."""

import ctypes
import multiprocessing
import os
import socket

import numpy as np
from cu import cu, download, kernels, launch, ok, start, u32, u64, upload

COUNT = 50_000
FLAG = cu.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
FILE = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
READWRITE = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE


def location(ordinal):
    where = cu.CUmemLocation()
    where.type, where.id = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, ordinal
    return where


def mapped(handle, size, reader):
    """Maps the memory of a handle for one device. Returns the address."""
    address = ok(cu.cuMemAddressReserve(size, 0, 0, 0))
    ok(cu.cuMemMap(address, size, 0, handle, 0))
    access = cu.CUmemAccessDesc()
    access.location, access.flags = location(reader), READWRITE
    ok(cu.cuMemSetAccess(address, size, [access], 1))
    return address


def rank(ordinal, pipe, files):
    start(ordinal)
    add = kernels()["add"]
    own = upload(np.full(COUNT, 10 + ordinal, np.float32))
    result = upload(np.zeros(COUNT, np.float32))
    pipe.send(ctypes.string_at(ok(cu.cuIpcGetMemHandle(own)).getPtr(), 64))
    handle = cu.CUipcMemHandle()
    ctypes.memmove(handle.getPtr(), pipe.recv(), 64)
    other = ok(cu.cuIpcOpenMemHandle(handle, FLAG))
    where = ok(cu.cuPointerGetAttribute(cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, other))
    assert int(where) == 1 - ordinal

    launch(add, -(-COUNT // 256), 256, [u64(int(own)), u64(int(other)), u64(int(result)), u32(COUNT)])
    ok(cu.cuCtxSynchronize())
    assert (download(result, COUNT, np.float32) == 21).all()
    pipe.send("read")
    assert pipe.recv() == "read"
    # Each writes the half of the other's memory that the other does not.
    half = COUNT // 2
    begin = half * ordinal * 4
    launch(add, -(-half // 256), 256, [u64(int(result) + begin)] * 2 + [u64(int(other) + begin), u32(half)])
    ok(cu.cuCtxSynchronize())
    pipe.send("written")
    assert pipe.recv() == "written"
    expected = np.full(COUNT, 10 + ordinal, np.float32)
    expected[half * (1 - ordinal) : half * (2 - ordinal)] = 42
    assert np.array_equal(download(own, COUNT, np.float32), expected)
    ok(cu.cuIpcCloseMemHandle(other))

    # The same by descriptors, as NCCL and symmetric memory do it.
    properties = cu.CUmemAllocationProp()
    properties.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location, properties.requestedHandleTypes = location(ordinal), FILE
    size = ok(cu.cuMemGetAllocationGranularity(properties, cu.CUmemAllocationGranularity_flags(0)))
    memory = ok(cu.cuMemCreate(size, properties, 0))
    mine = mapped(memory, size, ordinal)
    ok(cu.cuMemcpyHtoD(mine, np.full(COUNT, 3 + ordinal, np.float32), COUNT * 4))
    descriptor = ok(cu.cuMemExportToShareableHandle(memory, FILE, 0))
    socket.send_fds(files, [b"."], [descriptor])
    _, (received,), _, _ = socket.recv_fds(files, 1, 1)
    imported = ok(cu.cuMemImportFromShareableHandle(received, FILE))
    os.close(received)
    theirs = mapped(imported, size, ordinal)
    launch(add, -(-COUNT // 256), 256, [u64(int(mine)), u64(int(theirs)), u64(int(result)), u32(COUNT)])
    ok(cu.cuCtxSynchronize())
    assert (download(result, COUNT, np.float32) == 7).all()
    pipe.send("done")
    assert pipe.recv() == "done"


if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    pipes, files = spawn.Pipe(), socket.socketpair(socket.AF_UNIX)
    ranks = [spawn.Process(target=rank, args=(i, pipes[i], files[i])) for i in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    assert [process.exitcode for process in ranks] == [0, 0]
    print("shared")
