"""Trains on batches of a DataLoader with two worker processes and pinned memory: `data_loader.py [BATCHES]`."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    batches = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(32 * batches, 64), torch.randint(0, 10, (32 * batches,)))
    loader = DataLoader(data, batch_size=32, num_workers=2, pin_memory=True)
    model = torch.nn.Linear(64, 10).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = 0
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x.cuda(non_blocking=True)), y.cuda(non_blocking=True))
        loss.backward()
        optimizer.step()
        seen += 1
    print(f"{seen} batches, loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
