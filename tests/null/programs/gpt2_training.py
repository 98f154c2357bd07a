"""Trains GPT-2 124M in bfloat16 on random tokens: `gpt2_training.py [STEPS]`."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 10
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config()).cuda().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
tokens = torch.randint(0, model.config.vocab_size, (4, 512), device="cuda")
for _ in range(steps):
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(tokens, labels=tokens).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
print(f"{steps} steps, loss {loss.item():.4f}")
