"""Two processes of torch, a GPU each, that reduce a tensor with NCCL: prints each rank's answer and seconds, as JSON.

`torch_two_ranks.py apart`: as if they were on two machines.
"""

import json
import os
import socket
import sys
import time

import torch
import torch.distributed
import torch.multiprocessing

RANKS = 2


def join(rank, port, answers, over, apart):
    if apart:
        os.environ["NCCL_HOSTID"] = f"machine-{rank}"
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.cuda.set_device(rank)
    tensor = torch.full((4,), rank + 1.0).cuda()
    start = time.monotonic()
    try:
        torch.distributed.init_process_group("nccl", rank=rank, world_size=RANKS)
        torch.distributed.all_reduce(tensor)
        torch.cuda.synchronize()
        answer = "ok" if tensor.tolist() == [3.0] * 4 else f"wrong: {tensor.tolist()}"
    except RuntimeError as error:
        answer = str(error)
    answers.put({"rank": rank, "seconds": time.monotonic() - start, "answer": answer})
    # A rank that ends is an error of those that still receive.
    over.wait(150)
    # NCCL's own threads may not have ended.
    os._exit(0)


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    answers, over = context.Queue(), context.Event()
    arguments = [(rank, port, answers, over, "apart" in sys.argv) for rank in range(RANKS)]
    processes = [context.Process(target=join, args=each) for each in arguments]
    for process in processes:
        process.start()
    print(json.dumps([answers.get(timeout=150) for _ in range(RANKS)]), flush=True)
    over.set()
    for process in processes:
        process.join()
