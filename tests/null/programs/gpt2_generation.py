"""Generates with GPT-2 124M, random weights: `gpt2_generation.py [TOKENS]`."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel

count = int(sys.argv[1]) if len(sys.argv) > 1 else 16
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config()).to("cuda", torch.bfloat16).eval()
prompt = torch.randint(0, model.config.vocab_size, (2, 32), device="cuda")
with torch.inference_mode():
    # Greedy, since sampling checks that the probabilities are some; no end but the length.
    found = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count, min_new_tokens=count,
        do_sample=False, pad_token_id=0,
    )  # fmt: skip
assert found.shape == (2, 32 + count), found.shape
print(f"{count} tokens")
