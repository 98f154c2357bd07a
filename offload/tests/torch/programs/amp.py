"""Automatic mixed precision: autocast and GradScaler around a small network, in the spellings of today and of
yesterday.

python amp.py --device NAME --json FILE [--dtype float16|bfloat16]
"""

import argparse
import json

import torch
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", required=True)
    parser.add_argument("--dtype", default="float16")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 4)).to(options.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler(options.device, init_scale=2.0**30 if options.dtype == "float16" else 1024.0)
    losses, types, scales = [], set(), []
    for _step in range(20):
        x = torch.randn(32, 16).to(options.device)
        y = (x[:, :4] * 2).argmax(1)
        with torch.autocast(options.device, dtype=getattr(torch, options.dtype)):
            out = model(x)
            types.add(str(out.dtype))
            loss = nn.functional.cross_entropy(out, y)
            types.add(str(loss.dtype))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    with open(options.json, "w") as file:
        json.dump({"losses": losses, "types": sorted(types), "scales": scales}, file)


if __name__ == "__main__":
    main()
