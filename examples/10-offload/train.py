"""Train a convolutional network on handwritten digits with PyTorch. Knows nothing of remotegpu.

    python train.py [--device NAME] [--epochs N] [--checkpoint FILE] [--json FILE]

1,797 pictures of 8 x 8 pixels from scikit-learn; 1,437 to train, 360 to test. Two convolutions with batch
normalisation, AdamW, a cosine schedule, gradients clipped, faint pixels masked out. The same on every run with one kind
of device.
"""

import argparse
import hashlib
import json
import struct
import time

import torch
from sklearn.datasets import load_digits
from torch import nn

BATCH = 36


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(32 * 16, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, pictures):
        return self.head(self.features(pictures))


def train_step(model, optimizer, pictures, labels):
    """One batch; its loss."""
    faint = pictures < 0.07
    pictures[faint] = 0
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(pictures), labels, label_smoothing=0.05)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--checkpoint", help="write the trained weights to this file")
    parser.add_argument("--json", help="write the results to this file")
    options = parser.parse_args()

    torch.manual_seed(7)
    torch.set_num_threads(1)  # so small a network gains nothing from more
    model = Net().to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    digits = load_digits()
    order = torch.randperm(len(digits.target))
    pictures = torch.tensor(digits.images, dtype=torch.float32)[order].unsqueeze(1) / 16
    labels = torch.tensor(digits.target)[order]
    split = 1437
    steps = split // BATCH * options.epochs
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    name = torch.cuda.get_device_name() if options.device.startswith("cuda") else "this machine's CPU"
    print(f"{options.device}: {name}; {sum(p.numel() for p in model.parameters())} parameters", flush=True)

    started = time.perf_counter()
    losses = []
    for epoch in range(options.epochs):
        model.train()
        shuffled = torch.randperm(split)
        for start in range(0, split - BATCH + 1, BATCH):
            batch = shuffled[start : start + BATCH]
            batch_pictures, batch_labels = pictures[batch].to(options.device), labels[batch].to(options.device)
            losses.append(train_step(model, optimizer, batch_pictures, batch_labels))
            schedule.step()
        print(f"epoch {epoch + 1}  loss {losses[-1]:.4f}  step {len(losses)}", flush=True)
    seconds = time.perf_counter() - started

    model.eval()
    with torch.no_grad():
        guesses = model(pictures[split:].to(options.device)).argmax(dim=1).cpu()
    accuracy = (guesses == labels[split:]).double().mean().item()
    digest = hashlib.sha256(struct.pack(f"<{len(losses)}d", *losses)).hexdigest()[:16]
    print(f"test accuracy {accuracy:.4f} after {len(losses)} steps in {seconds:.1f} s")
    print(f"losses {digest}")
    if options.checkpoint:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, options.checkpoint)
    if options.json:
        results = {"accuracy": accuracy, "losses": losses, "digest": digest, "seconds": seconds, "steps": len(losses)}
        with open(options.json, "w") as file:
            json.dump(results, file)


if __name__ == "__main__":
    main()
