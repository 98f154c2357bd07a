"""A multilayer perceptron through torch.compile: Triton's kernels, made on this machine."""
# needs: torch, triton
# machine code only

import json
import time

import torch
from torch import nn

torch.manual_seed(7)
model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 10)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
x, y = torch.randn(512, 256).cuda(), torch.randint(0, 10, (512,)).cuda()
loss_of = torch.compile(lambda: nn.functional.cross_entropy(model(x), y))


def step():
    optimizer.zero_grad()
    loss = loss_of()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


step()
begin = time.monotonic()
losses = [step().hex() for _ in range(50)]
print(json.dumps({"losses": losses, "seconds": time.monotonic() - begin}))
