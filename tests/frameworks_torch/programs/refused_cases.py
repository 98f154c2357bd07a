"""What a share or the software GPU does not provide: torch's own error each time, and all else continues."""

from __future__ import annotations

import ctypes

import cases
import torch
import torch.multiprocessing as mp

torch.manual_seed(7)


def refuses(function, *codes):
    """The function fails with one of these names of CUDA errors, and the GPU works as before."""
    try:
        function()
    except RuntimeError as error:
        assert any(code in str(error) for code in codes), error
    else:
        raise AssertionError("no error")
    host = torch.arange(100.0)
    assert torch.equal(host.cuda().cpu(), host)
    torch.cuda.synchronize()


def own_kernels():
    """torch's wheel holds machine code for NVIDIA's GPUs only; on a GPU of NVIDIA this works."""
    ones = torch.tensor([1.0] * 8).cuda()
    for _ in range(2):
        refuses(lambda: ones + 1, "cudaErrorNoKernelImageForDevice")
    refuses(lambda: torch.ones(8, device="cuda"), "cudaErrorNoKernelImageForDevice")


def shared_with_another_process():
    """IPC: a tensor sent to another process goes by a memory handle."""
    tensor = torch.zeros(8, device="cuda")
    refuses(lambda: mp.reductions.reduce_tensor(tensor), "cudaErrorNotSupported")
    refuses(lambda: torch.cuda.Event(interprocess=True).ipc_handle(), "cudaErrorNotSupported")
    # Another process has a session of its own; what goes by way of the host is no IPC.
    context = mp.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=send_doubled, args=(queue, [3.0] * 8))
    process.start()
    assert queue.get(timeout=60) == [3.0] * 16
    process.join(60)


def send_doubled(queue, numbers):
    tensor = torch.tensor(numbers).cuda()
    queue.put(tensor.tolist() + tensor.clone().tolist())


def managed_memory():
    """torch has no managed tensors; a program would ask the runtime that torch brings along."""
    torch.zeros(1, device="cuda")
    runtime = ctypes.CDLL("libcudart.so.13")
    address, value = ctypes.c_void_p(), ctypes.c_int(7)
    attribute = 83  # cudaDevAttrManagedMemory
    assert runtime.cudaDeviceGetAttribute(ctypes.byref(value), attribute, 0) == 0
    assert value.value == 0
    assert runtime.cudaMallocManaged(ctypes.byref(address), ctypes.c_size_t(1 << 20), 1) == 801
    assert runtime.cudaGetLastError() == 801
    assert torch.zeros(3, device="cuda").tolist() == [0, 0, 0]


if __name__ == "__main__":
    cases.main(globals())
