"""Small language models with random weights, as files of GGUF, which llama.cpp reads."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

import numpy

WORDS: Final = 512
EMBEDDING: Final = 256
FORWARD: Final = 512
LAYERS: Final = 2
HEADS, KEY_HEADS = 4, 2
EXPERTS, EXPERTS_USED = 4, 2
ALIGNMENT: Final = 32
F32, F16 = 0, 1
# Kinds of tokens.
UNKNOWN, CONTROL, BYTE, WORD = 2, 3, 6, 1

Tensors = dict[str, numpy.ndarray]


def text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def value(it: object) -> bytes:
    """A value with its type before it; lists have one type."""
    match it:
        case int():
            return struct.pack("<II", 4, it)
        case float():
            return struct.pack("<If", 6, it)
        case str():
            return struct.pack("<I", 8) + text(it)
        case list():
            made = [value(each) for each in it]
            # The kinds of tokens are the one list of integers, which have a sign.
            kind = struct.pack("<I", 5) if isinstance(it[0], int) else made[0][:4]
            return struct.pack("<I", 9) + kind + struct.pack("<Q", len(it)) + b"".join(one[4:] for one in made)
        case _:
            raise TypeError(it)


def metadata(experts: bool) -> dict[str, object]:
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words = [f"▁w{at}" for at in range(len(special), WORDS)]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[WORD] * len(words)]
    of_experts: dict[str, object] = {"llama.expert_count": EXPERTS, "llama.expert_used_count": EXPERTS_USED}
    return {
        "general.architecture": "llama",
        "general.name": "random",
        "llama.context_length": 4096,
        "llama.embedding_length": EMBEDDING,
        "llama.block_count": LAYERS,
        "llama.feed_forward_length": FORWARD,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KEY_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": EMBEDDING // HEADS,
        "llama.vocab_size": WORDS,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": special + words,
        "tokenizer.ggml.scores": [0.0] * WORDS,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    } | (of_experts if experts else {})


def tensors(experts: bool, seed: int = 7) -> Tensors:
    """Weights that keep what passes through them at about its size."""
    random = numpy.random.default_rng(seed)

    def weights(*shape: int) -> numpy.ndarray:
        return numpy.asarray(random.standard_normal(shape) / numpy.sqrt(shape[-1]), numpy.float16)

    def ones() -> numpy.ndarray:
        return numpy.ones(EMBEDDING, numpy.float32)

    keys = EMBEDDING // HEADS * KEY_HEADS
    made: Tensors = {"token_embd.weight": weights(WORDS, EMBEDDING), "output_norm.weight": ones()}
    made["output.weight"] = weights(WORDS, EMBEDDING)
    for layer in range(LAYERS):
        of_layer = {
            "attn_norm": ones(),
            "attn_q": weights(EMBEDDING, EMBEDDING),
            "attn_k": weights(keys, EMBEDDING),
            "attn_v": weights(keys, EMBEDDING),
            "attn_output": weights(EMBEDDING, EMBEDDING),
            "ffn_norm": ones(),
        }
        several, end = ((EXPERTS,), "_exps") if experts else ((), "")
        if experts:
            of_layer["ffn_gate_inp"] = weights(EXPERTS, EMBEDDING).astype(numpy.float32)
        of_layer[f"ffn_gate{end}"] = weights(*several, FORWARD, EMBEDDING)
        of_layer[f"ffn_up{end}"] = weights(*several, FORWARD, EMBEDDING)
        of_layer[f"ffn_down{end}"] = weights(*several, EMBEDDING, FORWARD)
        made |= {f"blk.{layer}.{name}.weight": array for name, array in of_layer.items()}
    return made


def write(file: Path, experts: bool = False) -> Path:
    """Writes a model of two layers in f16: with experts, a mixture of four of which two are used."""
    about, arrays = metadata(experts), tensors(experts)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(arrays), len(about))
    head += b"".join(text(name) + value(it) for name, it in about.items())
    data = b""
    for name, array in arrays.items():
        head += text(name) + struct.pack("<I", array.ndim)
        head += struct.pack(f"<{array.ndim}Q", *reversed(array.shape))
        head += struct.pack("<IQ", F16 if array.dtype == numpy.float16 else F32, len(data))
        data += padded(array.tobytes())
    file.write_bytes(padded(head) + data)
    return file


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)
