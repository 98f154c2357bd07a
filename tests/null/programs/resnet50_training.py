"""Trains ResNet-50 on random images: `resnet50_training.py [STEPS]`."""

import sys

import torch
from transformers import ResNetConfig, ResNetForImageClassification

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 10
torch.manual_seed(0)
model = ResNetForImageClassification(ResNetConfig(num_labels=1000)).cuda().train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
images = torch.randn(8, 3, 224, 224, device="cuda")
labels = torch.randint(0, 1000, (8,), device="cuda")
for _ in range(steps):
    optimizer.zero_grad()
    loss = model(images, labels=labels).loss
    loss.backward()
    optimizer.step()
print(f"{steps} steps, loss {loss.item():.4f}")
