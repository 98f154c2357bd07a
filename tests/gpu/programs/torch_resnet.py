"""A small residual network in fp32 with SGD: cuDNN, whose batch norm sets functions' attributes between launches."""
# needs: torch
# machine code only

import json
import time

import torch
from torch import nn

torch.manual_seed(5)
torch.backends.cudnn.deterministic = True


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        half = lambda: (nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels))  # noqa: E731
        self.body = nn.Sequential(*half(), nn.ReLU(), *half())

    def forward(self, x):
        return torch.relu(x + self.body(x))


model = nn.Sequential(
    nn.Conv2d(3, 64, 7, 2, 3), *[Block(64) for _ in range(8)], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
images, labels = torch.randn(32, 3, 96, 96).cuda(), torch.randint(0, 10, (32,)).cuda()


def step():
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.detach()


first = float(step())
begin = time.monotonic()
losses = [first.hex()] + [float(step()).hex() for _ in range(60)]
print(json.dumps({"losses": losses, "seconds": time.monotonic() - begin}))
