"""Trains a small GPT to continue sums like 23+58=081, on a GPU where there is one. It knows nothing of remotegpu."""

import argparse
import json
import time

import torch
from torch import nn
from torch.nn import functional

SYMBOLS = "0123456789+=. "
LENGTH = 9


def sums(count, generator):
    """Sentences like `23+58=081.` as numbers of symbols."""
    left, right = torch.randint(10, 50, (2, count), generator=generator).tolist()
    lines = [f"{a}+{b}={a + b:03d}." for a, b in zip(left, right, strict=True)]
    return torch.tensor([[SYMBOLS.index(symbol) for symbol in line] for line in lines])


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.attention(self.norms[0](x)).chunk(3, -1)
        )
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(seen.transpose(1, 2).flatten(2))
        return x + self.feed(self.norms[1](x))


class GPT(nn.Module):
    def __init__(self, width=64, heads=4, layers=2):
        super().__init__()
        self.symbols, self.places = nn.Embedding(len(SYMBOLS), width), nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, len(SYMBOLS))

    def forward(self, symbols):
        places = torch.arange(symbols.shape[1], device=symbols.device)
        return self.head(self.norm(self.blocks(self.symbols(symbols) + self.places(places))))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--json", help="write the losses into this file")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    memory = f", {torch.cuda.mem_get_info()[1] >> 20} MiB" if device == "cuda" else ""
    print(f"torch {torch.__version__} on {torch.cuda.get_device_name() if memory else 'the CPU'}{memory}", flush=True)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = GPT().to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses, start = [], time.monotonic()
    for step in range(arguments.steps):
        batch = sums(arguments.batch, generator).to(device)
        loss = functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        if step % 10 == 9:
            print(f"step {step + 1:3}: loss {losses[-1]:.4f}", flush=True)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"device": device, "losses": losses, "seconds": time.monotonic() - start}, file)


if __name__ == "__main__":
    main()
