"""Two ranks ask NCCL for a sum. Each says how it ended."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def rank(number, port):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    torch.cuda.set_device(number % torch.cuda.device_count())
    dist.init_process_group("gloo", rank=number, world_size=2)
    tensor = torch.tensor([1.0, 2.0]).cuda()
    dist.barrier()
    try:
        dist.all_reduce(tensor, group=dist.new_group(backend="nccl"))
        torch.cuda.synchronize()
        outcome = f"sum {tensor.tolist()}"
    except RuntimeError as error:
        outcome = f"{type(error).__name__}: {' '.join(str(error).split())}"
    # In one piece, since the ranks share their output.
    os.write(1, f"{outcome}\n".encode())
    # The group of a communicator that never was cannot be taken apart in order.
    os._exit(0)


if __name__ == "__main__":
    mp.spawn(rank, args=(sys.argv[1],), nprocs=2)
