"""A small transformer that learns to reverse sequences: an EMA by deepcopy, a DataLoader with workers, gradient
accumulation.

python transformer.py --device NAME --json FILE [--workers N]
"""

import argparse
import copy
import json
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WORDS, LENGTH, WIDTH = 12, 8, 32


class Reversals(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        made = torch.Generator().manual_seed(index)
        words = torch.randint(WORDS, (LENGTH,), generator=made)
        return words, words.flip(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS)
        place = torch.arange(LENGTH).unsqueeze(1)
        rate = torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(10000.0) / WIDTH))
        places = torch.zeros(LENGTH, WIDTH)
        places[:, 0::2], places[:, 1::2] = torch.sin(place * rate), torch.cos(place * rate)
        self.register_buffer("places", places)

    def forward(self, words):
        return self.head(self.body(self.words(words) + self.places))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", required=True)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(5)
    model = Model().to(options.device)
    average = copy.deepcopy(model)
    for parameter in average.parameters():
        parameter.requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loader = DataLoader(
        Reversals(),
        batch_size=32,
        shuffle=True,
        num_workers=options.workers,
        pin_memory=True,
        generator=torch.Generator().manual_seed(1),
    )
    losses = []
    for _epoch in range(2):
        for step, (words, wanted) in enumerate(loader):
            words = words.to(options.device, non_blocking=True)
            wanted = wanted.to(options.device, non_blocking=True)
            loss = nn.functional.cross_entropy(model(words).reshape(-1, WORDS), wanted.reshape(-1))
            (loss / 2).backward()
            if step % 2:
                optimizer.step()
                optimizer.zero_grad()
                with torch.no_grad():
                    for kept, new in zip(average.parameters(), model.parameters()):
                        kept.lerp_(new, 0.1)
                losses.append(loss.item())
    average.eval()
    with torch.no_grad():
        words, wanted = (
            torch.stack(rows).to(options.device) for rows in zip(*(Reversals()[i] for i in range(500, 512)))
        )
        guesses = average(words)
        right = (guesses.argmax(-1) == wanted).float().mean().item()
    total = sum(parameter.double().abs().sum().item() for parameter in average.parameters())
    with open(options.json, "w") as file:
        json.dump({"losses": losses, "right": right, "total": total}, file)


if __name__ == "__main__":
    main()
