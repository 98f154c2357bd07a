"""torch wholly in the acceptor: a loader with workers, and a checkpoint on the client's disk."""

import torch
from data import Points
from torch import nn
from torch.utils.data import DataLoader


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(3):
        total = 0.0
        for x, y in DataLoader(Points(), batch_size=16, num_workers=2):
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(epoch, repr(total))
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "out/model.pt")
    again = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    again.load_state_dict(torch.load("out/model.pt")["model"])
    print(torch.equal(again(torch.ones(1, 4)), model(torch.ones(1, 4))))


if __name__ == "__main__":
    main()
