"""One rank asks NCCL for sums: the tensor stays what it is."""
# needs: torch
# machine code only

import json
import os
import time

import torch
import torch.distributed as dist

os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "NCCL_SOCKET_IFNAME": "lo"}
store = dist.HashStore()
dist.init_process_group("nccl", store=store, rank=0, world_size=1)
tensor = torch.arange(1000, dtype=torch.float32).cuda()
dist.all_reduce(tensor)
torch.cuda.synchronize()
begin = time.monotonic()
for _ in range(20):
    dist.all_reduce(tensor)
torch.cuda.synchronize()
seconds = time.monotonic() - begin
print(json.dumps({"losses": [float(tensor.cpu().sum()).hex()], "seconds": seconds}))
os._exit(0)
