"""Generates with GPT-2 124M, random weights, token by token with a cache: `gpt2_generation.py [TOKENS]`."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel

count = int(sys.argv[1]) if len(sys.argv) > 1 else 16
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config()).to("cuda", torch.bfloat16).eval()
tokens = torch.randint(0, model.config.vocab_size, (2, 32), device="cuda")
found, past = [tokens], None
with torch.inference_mode():
    for _ in range(count):
        answer = model(tokens, past_key_values=past, use_cache=True)
        past, tokens = answer.past_key_values, answer.logits[:, -1:].argmax(-1)
        found.append(tokens)
print(f"{torch.cat(found, 1).cpu().shape[1]} tokens")
