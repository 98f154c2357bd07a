"""A small transformer in bf16 autocast with fused AdamW, a synchronise at the end only; then it writes some tokens."""
# needs: torch
# machine code only

import json
import time

import torch
from torch import nn

torch.manual_seed(6)
layer = nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, batch_first=True, norm_first=True)
body, embed, head = nn.TransformerEncoder(layer, 6).cuda(), nn.Embedding(512, 256).cuda(), nn.Linear(256, 512).cuda()
parameters = [*body.parameters(), *embed.parameters(), *head.parameters()]
optimizer = torch.optim.AdamW(parameters, lr=3e-4, fused=True)
tokens = torch.randint(0, 512, (8, 129)).cuda()
mask = nn.Transformer.generate_square_subsequent_mask(128).cuda()


def logits(given, mask):
    with torch.autocast("cuda", torch.bfloat16):
        return head(body(embed(given), mask=mask, is_causal=True)).float()


def step():
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(logits(tokens[:, :-1], mask).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    return loss.detach()


step()
torch.cuda.synchronize()
begin = time.monotonic()
losses = [step() for _ in range(40)]
torch.cuda.synchronize()
seconds = time.monotonic() - begin
written = tokens[:1, :16]
with torch.no_grad():
    for _ in range(16):
        square = nn.Transformer.generate_square_subsequent_mask(written.shape[1]).cuda()
        written = torch.cat([written, logits(written, square)[:, -1:].argmax(-1)], 1)
losses = [float(loss).hex() for loss in losses] + [float(token).hex() for token in written[0].tolist()]
print(json.dumps({"losses": losses, "seconds": seconds}))
