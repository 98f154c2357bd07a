"""Trains ResNet-50 in bfloat16, channels last: `resnet50_mixed.py [STEPS]`."""

import sys

import torch
from transformers import ResNetConfig, ResNetForImageClassification

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 10
torch.manual_seed(0)
model = ResNetForImageClassification(ResNetConfig(num_labels=1000)).cuda().train()
model = model.to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
images = torch.randn(8, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
labels = torch.randint(0, 1000, (8,), device="cuda")
for _ in range(steps):
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(images, labels=labels).loss
    loss.backward()
    optimizer.step()
print(f"{steps} steps, loss {loss.item():.4f}")
