"""A convolutional network on scikit-learn's digits: BatchNorm, AdamW, a schedule, clipping, masks, a checkpoint read
back.

python digits.py --device NAME --json FILE [--checkpoint FILE] [--steps N]
"""

import argparse
import json

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 16, 3, padding=1)
        self.head = nn.Linear(16 * 16, 10)

    def forward(self, x):
        x = functional.relu(self.norm(self.first(x)))
        x = functional.max_pool2d(functional.relu(self.second(x)), 2)
        return self.head(x.flatten(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", required=True)
    parser.add_argument("--checkpoint")
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(3)
    device = torch.device(options.device)
    net = Net().to(device)
    assert all(p.device.type == device.type for p in net.parameters())
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 8e-3, total_steps=options.steps)
    digits = load_digits()
    pictures = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels))
    train, test = order[:1500], order[1500:]
    losses = []
    for step in range(options.steps):
        batch = train[torch.randint(len(train), (48,))]
        x, y = pictures[batch].to(device), labels[batch].to(device)
        x[x < 0.1] = 0
        loss_rows = functional.cross_entropy(net(x), y, reduction="none")
        loss = torch.where(loss_rows > 20, torch.zeros_like(loss_rows), loss_rows).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 2.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step == options.steps // 2 and options.checkpoint:
            torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, options.checkpoint)
            saved = torch.load(options.checkpoint, weights_only=True)
            net.load_state_dict(saved["net"])
            optimizer.load_state_dict(saved["optimizer"])
    net.eval()
    with torch.no_grad():
        guesses = net(pictures[test].to(device)).argmax(1)
    right = guesses == labels[test].to(device)
    hard = torch.nonzero(~right).flatten().cpu().tolist()
    with open(options.json, "w") as file:
        json.dump(
            {"losses": losses, "accuracy": right.float().mean().item(), "wrong": hard, "shown": str(guesses.device)},
            file,
        )


if __name__ == "__main__":
    main()
