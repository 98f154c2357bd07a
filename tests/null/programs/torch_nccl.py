"""Two processes of torch, a GPU each, whose NCCL reaches the other's memory: collectives of several sizes compared with
NumPy. Prints "same"."""

import os
import socket

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing

RANKS = 2
SIZES = (5, 1000, 300_000)


def given(rank, size):
    """Small whole numbers, so that sums are exact in any order."""
    return np.random.default_rng([rank, size]).integers(-50, 50, size).astype(np.float32)


def on_device(array):
    return torch.from_numpy(array).cuda()


def collectives(rank, size):
    parts = [given(r, size) for r in range(RANKS)]
    total = np.sum(parts, axis=0)

    tensor = on_device(parts[rank])
    dist.all_reduce(tensor)
    assert np.array_equal(tensor.cpu().numpy(), total), ("all_reduce", size)

    tensor = on_device(parts[rank])
    dist.broadcast(tensor, src=1)
    assert np.array_equal(tensor.cpu().numpy(), parts[1]), ("broadcast", size)

    gathered = torch.empty(RANKS * size, device="cuda")
    dist.all_gather_into_tensor(gathered, on_device(parts[rank]))
    assert np.array_equal(gathered.cpu().numpy(), np.concatenate(parts)), ("all_gather", size)

    whole = [np.concatenate([given(10 * r + k, size) for k in range(RANKS)]) for r in range(RANKS)]
    reduced = torch.empty(size, device="cuda")
    dist.reduce_scatter_tensor(reduced, on_device(whole[rank]))
    mine = np.sum(whole, axis=0)[rank * size : (rank + 1) * size]
    assert np.array_equal(reduced.cpu().numpy(), mine), ("reduce_scatter", size)

    received = torch.empty(size, device="cuda")
    sent = on_device(parts[rank])
    work = dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, 1 - rank), dist.P2POp(dist.irecv, received, 1 - rank)])
    for each in work:
        each.wait()
    assert np.array_equal(received.cpu().numpy(), parts[1 - rank]), ("send", size)


def join(rank, port):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=RANKS)
    for size in SIZES:
        collectives(rank, size)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(join, args=(port,), nprocs=RANKS)
    print("same")
