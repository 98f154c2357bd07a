"""Threads that first use the device at the same time, and then make, compute, free and read tensors.

python threads.py --device NAME --json FILE [--threads N] [--steps N]
"""

import argparse
import gc
import json
import sys
import threading

import torch
from torch import nn
from torch.nn import functional


def step(device, thread, number):
    """Returns the results of one thread at one step, as numbers."""
    generator = torch.Generator().manual_seed(thread * 1000 + number)
    size = 2 + (thread * 7 + number) % 5
    host = torch.randn(size, size, generator=generator)
    x = host.to(device)
    found = [(x @ x.t() + number * torch.eye(size, device=device)).cpu()]
    changed = x.clone()
    changed.add_(1).mul_(thread + 1)
    changed[0] = 3
    changed[:, 1] -= number
    found += [changed.sum(), (x.view(-1)[1::2] * 2).cpu(), x[x > 0].cpu(), torch.nonzero(x > 0.5).cpu()]
    found += [functional.layer_norm(x, (size,)).cpu(), x[torch.tensor([0, size - 1, 1])].cpu()]
    parts = [torch.full((count + 1,), float(count + number), device=device) for count in range(5)]
    found.append(torch.cat(parts).cpu())
    del parts
    weight = host.clone().to(device).requires_grad_()
    loss = ((weight @ x).relu() ** 2).mean()
    loss.backward()
    found += [weight.grad.cpu(), loss.detach()]
    found.append(torch.empty(0, device=device).resize_(size + number % 50).fill_(2).sum())
    found.append((torch.arange(20000.0 + number).to(device) + 1)[-1])
    found += [torch.sort(x.flatten())[0].cpu(), *(part.cpu() for part in x.max(0))]
    if number % 5 == 0:
        net = nn.Sequential(nn.Linear(size, 3), nn.ReLU(), nn.BatchNorm1d(3), nn.Linear(3, 1))
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        found.append(net.to(device)(x).detach().cpu())
    return [value for tensor in found for value in tensor.flatten().tolist()]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", required=True)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    # Threads take turns often, wherever they are.
    sys.setswitchinterval(1e-5)
    together = threading.Barrier(options.threads)
    results = [[] for _ in range(options.threads)]
    failed = []

    def run(thread):
        try:
            together.wait(600)
            for number in range(options.steps):
                results[thread].append(step(options.device, thread, number))
        except Exception as error:
            failed.append(f"thread {thread}: {type(error).__name__}: {error}")
            raise

    threads = [threading.Thread(target=run, args=(number,)) for number in range(options.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    held = torch.cuda.memory_allocated() if options.device == "cuda" else 0
    with open(options.json, "w") as file:
        json.dump({"results": results, "failed": failed, "held": held}, file)


main()
