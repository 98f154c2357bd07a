"""Collectives of one rank of NCCL through torch.distributed, which are copies: `nccl_one_rank.py`."""

import os

import torch
import torch.distributed as dist

os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=torch.device("cuda", 0))
numbers = torch.arange(1 << 16, dtype=torch.float32)
values = numbers.cuda()
dist.all_reduce(values)
dist.broadcast(values, 0)
gathered = [torch.zeros(1 << 16).cuda()]
dist.all_gather(gathered, values)
torch.cuda.synchronize()
assert torch.equal(values.cpu(), numbers)
assert torch.equal(gathered[0].cpu(), numbers)
dist.destroy_process_group()
print("ok")
