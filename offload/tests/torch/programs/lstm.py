"""An LSTM that adds up its inputs, with packed sequences of different lengths and a GRU beside it.

python lstm.py --device NAME --json FILE
"""

import argparse
import json

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(2, 16, num_layers=2, batch_first=True)
        self.gru = nn.GRU(16, 8, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 1)

    def forward(self, packed):
        packed, _ = self.lstm(packed)
        packed, _ = self.gru(packed)
        rows, lengths = nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
        last = rows[torch.arange(len(rows), device=rows.device), (lengths - 1).to(rows.device)]
        return self.head(last).squeeze(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(2)
    model = Model().to(options.device)
    model.lstm.flatten_parameters()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    losses = []
    for _step in range(10):
        lengths = torch.randint(3, 9, (16,)).sort(descending=True).values
        rows = [torch.rand(int(length), 2) for length in lengths]
        packed = nn.utils.rnn.pack_sequence(rows).to(options.device)
        wanted = torch.stack([row[:, 0].sum() for row in rows]).to(options.device)
        loss = nn.functional.smooth_l1_loss(model(packed), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with open(options.json, "w") as file:
        json.dump({"losses": losses}, file)


if __name__ == "__main__":
    main()
