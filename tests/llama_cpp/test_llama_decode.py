"""llama.cpp decodes on a share: the same bits as natively, the CPU's logits, and few round trips for each token."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Final

import numpy
import pytest
from llama_cpp.decoding import SECONDS, Decoded, Decoder, built_decoder, error, native_command, program
from llama_cpp.random_model import write
from support.system import Appliance, appliance

pytestmark = pytest.mark.timeout(2 * SECONDS)
KINDS: Final = ("f16", "q4_0", "q4_K", "experts")
# llama.cpp's own limit for whole models against the CPU (tests/test-llama-archs.cpp).
TOLERANCE: Final = 1e-4
# Its limit for one product of matrices (tests/test-backend-ops.cpp), of which a value passes nine one after the other.
# Both round what they multiply such weights by to eight bits; CUDA's way takes the sum of the 32 of a block, with which
# it undoes the offset of q4_0, before it rounds them, and so is farther from unrounded values than the CPU.
TOLERANCE_OF_FOUR_BITS: Final = 9 * 5e-4
WARM, STEPS, FEW = 20, 100, 12
# There and back; steps of a run, and runs with each delay: more on a busy machine.
DELAY_MS, TIMED_STEPS, ROUNDS = 5, 40, 10


@pytest.fixture(scope="module")
def share() -> Iterator[Appliance]:
    with appliance("--grace", "0s") as it:
        yield it


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    made = {"f16": write(folder / "f16"), "experts": write(folder / "experts", experts=True)}
    for kind in ("q4_0", "q4_K"):
        made[kind] = quantised(made["f16"], kind, folder / kind)
    return made


def quantised(model: Path, kind: str, into: Path) -> Path:
    command = native_command(program("llama-quantize"), "--pure", str(model), str(into), kind)
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return into


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_decoder(tmp_path_factory.mktemp("decoder"))


@pytest.fixture
def decoder(made: Path, tmp_path: Path) -> Decoder:
    return Decoder(made, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_the_cpu_s_and_bits_are_native(
    kind: str, models: dict[str, Path], decoder: Decoder, share: Appliance
) -> None:
    native = decoder.decode(models[kind], FEW, None)
    remote = decoder.decode(models[kind], FEW, share)
    right = decoder.on_the_cpu(models[kind], native.tokens)
    assert remote.tokens == native.tokens
    assert remote.logits.tobytes() == native.logits.tobytes()
    assert numpy.isfinite(right.logits).all() and len(set(native.tokens)) > 2
    found = error(native.logits, right.logits)
    print(f"{kind}: {found:.1e} from the CPU's")
    assert found < (TOLERANCE_OF_FOUR_BITS if kind.startswith("q4") else TOLERANCE)
    # The answer depends on what came before, so a step that repeats another's is found.
    assert error(native.logits[1:], right.logits[:-1]) > 0.1
    assert remote.statistics["round_trips"] > 0 and native.statistics == {}


@pytest.mark.parametrize("carrier", ["direct", "grpc"])
def test_each_carrier_brings_the_same_bits(
    carrier: str, models: dict[str, Path], decoder: Decoder, share: Appliance
) -> None:
    by_itself = decoder.decode(models["f16"], FEW, share)
    chosen = decoder.decode(models["f16"], FEW, share, settings={"REMOTEGPU_CARRIER": carrier})
    assert chosen.logits.tobytes() == by_itself.logits.tobytes()


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({}, 8),
        ({"GGML_CUDA_DISABLE_GRAPHS": "1"}, 8),
        ({"GGML_CUDA_ENABLE_UNIFIED_MEMORY": "1"}, 20),
    ],
    ids=["graphs", "without-graphs", "unified-memory"],
)
def test_a_token_makes_few_round_trips(
    settings: dict[str, str], most: int, models: dict[str, Path], decoder: Decoder, share: Appliance
) -> None:
    """Counts the mean per token of 100 steps after 20."""
    short = decoder.decode(models["f16"], WARM, share, settings=settings)
    long = decoder.decode(models["f16"], WARM + STEPS, share, settings=settings)
    assert long.logits[:WARM].tobytes() == short.logits.tobytes()
    round_trips, graphs, launches = (
        (long.count(name) - short.count(name)) / STEPS for name in ("round_trips", "cuGraphLaunch", "cuLaunchKernelEx")
    )
    print(f"{settings}: {round_trips} round trips for a token, {graphs} graphs, {launches} launches")
    assert 1 <= round_trips <= most
    # The setting has its effect: a graph for each token, or none.
    assert graphs == (0 if "GGML_CUDA_DISABLE_GRAPHS" in settings else 1)
    managed = long.count("cuMemAllocManaged")
    assert (managed > 0) == ("GGML_CUDA_ENABLE_UNIFIED_MEMORY" in settings)


def test_many_sequences_make_no_more_round_trips(models: dict[str, Path], decoder: Decoder, share: Appliance) -> None:
    """32 that are decoded together, as a server does; each has the tokens that one has by itself."""
    many = {"DECODE_SEQUENCES": "32"}
    short, long = (decoder.decode(models["f16"], steps, share, settings=many) for steps in (4, FEW))
    round_trips = (long.count("round_trips") - short.count("round_trips")) / (FEW - 4)
    print(f"{round_trips} round trips for a step of 32 sequences")
    assert 1 <= round_trips <= 8
    right = decoder.on_the_cpu(models["f16"], long.tokens)
    assert error(long.logits, right.logits) < TOLERANCE


def test_a_token_takes_the_time_of_its_round_trips(models: dict[str, Path], decoder: Decoder, share: Appliance) -> None:
    """A slower network delays a step once for each round trip."""
    short, long = (decoder.decode(models["f16"], WARM + more, share, delay_ms=0) for more in (0, TIMED_STEPS))
    counted = (long.count("round_trips") - short.count("round_trips")) / TIMED_STEPS
    best = {0: inf, DELAY_MS: inf}
    for _ in range(ROUNDS):
        for delay in best:
            found = decoder.decode(models["f16"], WARM + TIMED_STEPS, share, delay_ms=delay).milliseconds()
            # Other work makes steps longer, and never shorter.
            best[delay] = min(best[delay], *found[WARM:])
        waited = (best[DELAY_MS] - best[0]) / DELAY_MS
        print(f"{waited} delays for {counted} round trips, by {best} ms")
        if waited == pytest.approx(counted, abs=0.5):
            break
    assert waited == pytest.approx(counted, abs=0.5)


@pytest.mark.parametrize("cache", ["f16", "q8_0"])
def test_flash_attention_gives_the_cpu_s_logits_and_native_bits(
    cache: str, models: dict[str, Path], decoder: Decoder, share: Appliance
) -> None:
    """Uses tensor cores where keys are kept in f16; with q8_0 and a single token it uses vectors."""
    native = decoder.decode(models["f16"], FEW, None, cache=cache)
    remote = decoder.decode(models["f16"], FEW, share, cache=cache)
    without = decoder.decode(models["f16"], FEW, None)
    right = decoder.on_the_cpu(models["f16"], native.tokens, cache)
    assert remote.tokens == native.tokens
    assert remote.logits.tobytes() == native.logits.tobytes()
    found = error(native.logits, right.logits)
    print(f"flash attention, {cache}: {found:.1e} from the CPU's")
    assert found < TOLERANCE
    # It ran on the GPU, not on the CPU in its place, and is another way to compute the same.
    assert splits(native) == splits(remote) == splits(without)
    assert native.logits.tobytes() != without.logits.tobytes()


def splits(decoded: Decoded) -> str:
    """The number of parts into which llama.cpp has divided its graph, each for a device."""
    found = re.search(r"nodes = \d+, splits = (\d+)", decoded.stderr)
    assert found, decoded.stderr[-4000:]
    return found[1]


@pytest.mark.parametrize(("split", "reduce"), [("layer", None), ("tensor", "internal"), ("tensor", "none")])
def test_two_gpus_have_a_part_each(split: str, reduce: str | None, models: dict[str, Path], decoder: Decoder) -> None:
    """A layer, or half of each tensor. Halves are added by kernels which wait for each other in page-locked memory
    (`internal`, the default), or after copies from one GPU to the other (`none`).
    """
    cache, settings = ("f16", {"GGML_CUDA_ALLREDUCE": reduce}) if reduce else (None, {})
    with appliance("--gpus", "2") as two:
        native = decoder.decode(models["f16"], FEW, None, split=split, gpus=2, cache=cache, settings=settings)
        remote = decoder.decode(models["f16"], FEW, two, split=split, gpus=2, cache=cache, settings=settings)
    assert "CUDA1" in native.stderr and "CUDA1" in remote.stderr
    right = decoder.on_the_cpu(models["f16"], native.tokens, cache)
    assert remote.logits.tobytes() == native.logits.tobytes()
    found = error(native.logits, right.logits)
    print(f"{split}, {reduce}: {found:.1e} from the CPU's, {remote.count('round_trips')} round trips")
    assert found < TOLERANCE


def test_gpus_of_two_appliances_add_by_copies_and_never_wait_for_each_other_in_vain(
    models: dict[str, Path], decoder: Decoder
) -> None:
    """Kernels of two appliances cannot meet in memory: the first that tries ends with a line that says so."""

    def decode(where: Appliance | None, other: Appliance | None, reduce: str) -> Decoded:
        settings = {"GGML_CUDA_ALLREDUCE": reduce}
        return decoder.decode(
            models["f16"], FEW, where, split="tensor", gpus=2, other=other, cache="f16", settings=settings
        )

    with appliance() as one, appliance() as other:
        assert decode(one, other, "none").logits.tobytes() == decode(None, None, "none").logits.tobytes()
        with pytest.raises(AssertionError, match="that belongs to another GPU or appliance"):
            decode(one, other, "internal")


@pytest.mark.parametrize(
    ("split", "why"),
    [("row", "device CUDA0 does not support split buffers"), ("tensor", "SPLIT_MODE_TENSOR requires flash_attn")],
)
def test_what_llama_cpp_refuses_natively_it_refuses_on_a_share(
    split: str, why: str, models: dict[str, Path], decoder: Decoder
) -> None:
    """It says why, and does not hang: it has no split by rows here, and none by tensors without flash attention."""
    with appliance("--gpus", "2") as two:
        for where in (None, two):
            with pytest.raises(AssertionError, match=why):
                decoder.decode(models["f16"], FEW, where, split=split, gpus=2)
