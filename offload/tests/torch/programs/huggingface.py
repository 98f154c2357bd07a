"""A Hugging Face model made from its configuration, nothing downloaded: a tiny Llama trains on random text and then
generates.

python huggingface.py --device NAME --json FILE
"""

import argparse
import json

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    model = LlamaForCausalLM(config).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    text = torch.randint(64, (4, 16)).to(options.device)
    losses = []
    for _step in range(8):
        result = model(input_ids=text, labels=text)
        optimizer.zero_grad()
        result.loss.backward()
        optimizer.step()
        losses.append(result.loss.item())
    model.eval()
    with torch.no_grad():
        generated = model.generate(text[:, :4], max_new_tokens=6, do_sample=False, pad_token_id=0)
    with open(options.json, "w") as file:
        json.dump({"losses": losses, "generated": generated.cpu().tolist()}, file)


if __name__ == "__main__":
    main()
