"""Features that a share or the software GPU does not provide: each time torch's own error, and all else works."""

from __future__ import annotations

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
    """torch's wheel has machine code for NVIDIA's GPUs only; on such a GPU this works."""
    ones = torch.tensor([1.0] * 8).cuda()
    for _ in range(2):
        refuses(lambda: ones + 1, "cudaErrorNoKernelImageForDevice")
    refuses(lambda: torch.ones(8, device="cuda"), "cudaErrorNoKernelImageForDevice")


def by_way_of_the_host():
    """Another process has a session of its own."""
    context = mp.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=send_doubled, args=(queue, [3.0] * 8))
    process.start()
    assert queue.get(timeout=60) == [3.0] * 16
    process.join(60)


def send_doubled(queue, numbers):
    tensor = torch.tensor(numbers).cuda()
    queue.put(tensor.tolist() + tensor.clone().tolist())


if __name__ == "__main__":
    cases.main(globals())
