"""torch.multiprocessing sends CUDA tensors to another process, which reads and writes them in place. Prints "ok".

Only copies are needed, no kernel: the software GPU keeps the values.
"""

import torch
import torch.multiprocessing as multiprocessing

COUNT = 100_000


def change(tensors, changed, done):
    whole, part = tensors.get(timeout=60)
    assert whole.is_cuda and part.is_cuda
    assert torch.equal(whole.cpu(), torch.arange(COUNT)), "the tensor as it was sent"
    assert torch.equal(part.cpu(), torch.arange(COUNT // 2, COUNT)), "a view of the same memory"
    whole[:10].copy_(torch.full((10,), -1))
    torch.cuda.synchronize()
    changed.set()
    assert done.wait(60)


def main():
    spawn = multiprocessing.get_context("spawn")
    tensors, changed, done = spawn.Queue(), spawn.Event(), spawn.Event()
    process = spawn.Process(target=change, args=(tensors, changed, done))
    process.start()
    whole = torch.arange(COUNT).cuda()
    tensors.put((whole, whole[COUNT // 2 :]))
    assert changed.wait(100)
    assert torch.equal(whole[:12].cpu(), torch.tensor([-1] * 10 + [10, 11])), "what the other process wrote"
    shared = torch.zeros(8).cuda()
    assert shared.share_memory_() is shared and shared.is_shared()
    done.set()
    process.join()
    assert process.exitcode == 0, process.exitcode
    print("ok")


if __name__ == "__main__":
    main()
