"""A small model for vLLM on a null GPU, and the settings that its tests share."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.system import ROOT, Appliance, appliance

PYTHON = Path(os.environ.get("REMOTEGPU_SERVING_PYTHON", ROOT / "target" / "null-serving" / "bin" / "python"))
RULES = Path(__file__).parent / "vllm.rules"
SECONDS = 900
WORDS = 1024
# What one start compiled, the next one takes.
CACHE = ROOT / "target" / "null-serving" / "cache"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": WORDS,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
TOKENIZER = {
    "version": "1.0",
    "pre_tokenizer": {"type": "Whitespace"},
    "added_tokens": [],
    "model": {"type": "WordLevel", "vocab": {f"w{at}": at for at in range(WORDS)}, "unk_token": "w0"},
}


def model(folder: Path) -> Path:
    """Writes a model of two layers, whose weights vLLM makes up; each word is a token."""
    made = folder / "model"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(CONFIG))
    (made / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (made / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return made


def settings() -> dict[str, str]:
    assert PYTHON.exists(), "run `make test-null-serving`, which installs the wheels"
    return {
        "REMOTEGPU_NULL_RULES": str(RULES),
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_CACHE_ROOT": str(CACHE / "vllm"),
        "TRITON_CACHE_DIR": str(CACHE / "triton"),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


@contextmanager
def null_h100() -> Iterator[Appliance]:
    """An appliance of one, that has the rules. It does not end with 0 if a rule matched nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REMOTEGPU_NULL_RULES", settings()["REMOTEGPU_NULL_RULES"])
        with appliance(profile="null-h100", memory_mib=80 << 10) as it:
            yield it
    assert it.process.returncode == 0
