"""CTranslate2: a decoder of random weights, which needs no download, on the GPU and on its CPU back end."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import cases
import ctranslate2
import numpy as np
from cases import Value
from ctranslate2.specs import common_spec, transformer_spec
from wheels import library

# CTranslate2 opens libcublas.so.12 by its name, which must then be loaded or on the path.
library("libcublasLt")
library("libcublas")
rng = np.random.default_rng(47)
LAYERS, HEADS, WIDTH, WORDS = 2, 4, 64, 60
VOCABULARY = [f"w{index}" for index in range(WORDS)]
PROMPTS = [[VOCABULARY[index] for index in rng.integers(3, WORDS, length)] for length in (7, 7, 5)]


def folder() -> str:
    """A saved model of the kind of GPT-2."""
    spec = transformer_spec.TransformerDecoderModelSpec.from_config(
        LAYERS, HEADS, pre_norm=True, activation=common_spec.Activation.GELUTanh
    )
    decoder = spec.decoder

    def linear(layer: common_spec.LinearSpec, rows: int, columns: int) -> None:
        layer.weight = (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)
        layer.bias = (rng.standard_normal(rows) * 0.1).astype(np.float32)

    def norm(layer: common_spec.LayerNormSpec) -> None:
        layer.gamma = (1 + rng.standard_normal(WIDTH) * 0.1).astype(np.float32)
        layer.beta = (rng.standard_normal(WIDTH) * 0.1).astype(np.float32)

    decoder.embeddings.weight = rng.standard_normal((WORDS, WIDTH)).astype(np.float32)
    decoder.position_encodings.encodings = (rng.standard_normal((64, WIDTH)) * 0.1).astype(np.float32)
    decoder.scale_embeddings = False
    norm(decoder.layer_norm)
    linear(decoder.projection, WORDS, WIDTH)
    for layer in decoder.layer:
        norm(layer.self_attention.layer_norm)
        linear(layer.self_attention.linear[0], 3 * WIDTH, WIDTH)
        linear(layer.self_attention.linear[1], WIDTH, WIDTH)
        norm(layer.ffn.layer_norm)
        linear(layer.ffn.linear_0, 4 * WIDTH, WIDTH)
        linear(layer.ffn.linear_1, WIDTH, 4 * WIDTH)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = VOCABULARY[:3]
    spec.register_vocabulary(VOCABULARY)
    spec.validate()
    path = tempfile.mkdtemp()
    spec.save(path)
    return path


MODEL = folder()


def generators(kind: str = "float32") -> tuple[ctranslate2.Generator, ctranslate2.Generator]:
    gpu = ctranslate2.Generator(MODEL, device="cuda", compute_type=kind)
    return gpu, ctranslate2.Generator(MODEL, device="cpu", compute_type="float32")


def scores() -> Iterator[Value]:
    gpu, cpu = (each.score_batch(PROMPTS) for each in generators())
    for one, other in zip(gpu, cpu, strict=True):
        yield Value(np.array(one.log_probs, np.float32), np.array(other.log_probs), 1e-5)


def logits() -> Iterator[Value]:
    gpu, cpu = generators()
    on_gpu, on_cpu = (each.forward_batch(PROMPTS, return_log_probs=True) for each in (gpu, cpu))
    yield Value(np.array(on_gpu.to_device(ctranslate2.Device.cpu)), np.array(on_cpu), 1e-5)


def greedy_and_beam() -> Iterator[Value]:
    for beams in (1, 4):
        options = {"max_length": 12, "beam_size": beams, "return_scores": True, "include_prompt_in_result": False}
        gpu, cpu = (each.generate_batch(PROMPTS, **options) for each in generators())
        for one, other in zip(gpu, cpu, strict=True):
            yield Value(np.array(one.sequences_ids[0]), np.array(other.sequences_ids[0]))
            yield Value(np.array(one.scores), np.array(other.scores), 1e-4)


def half_precision() -> Iterator[Value]:
    gpu, cpu = (each.score_batch(PROMPTS) for each in generators("float16"))
    for one, other in zip(gpu, cpu, strict=True):
        yield Value(np.array(one.log_probs, np.float32), np.array(other.log_probs), 2e-2)


if __name__ == "__main__":
    cases.main(globals())
