"""Whole programs, unmodified: here on the CPU, and with their `cuda` in an acceptor. Results are the same."""

from pathlib import Path

import pytest
from offload_armed import Programs

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(600)]


def test_digits_train_bit_for_bit_with_one_round_trip_a_step(programs: Programs, tmp_path: Path) -> None:
    steps = 40
    want = programs.on_cpu("digits", "--steps", str(steps), "--checkpoint", str(tmp_path / "here.pt"))
    got, crossed = programs.on_remote("digits", "--steps", str(steps), "--checkpoint", str(tmp_path / "there.pt"))
    assert got["shown"] == "cuda:0"
    assert {**got, "shown": ""} == {**want, "shown": ""}
    assert got["losses"][-1] < got["losses"][0]
    # Each step's loss; and the greeting, a checkpoint, the shapes of batch normalisation, the guesses, what is wrong.
    assert steps <= crossed["by_service"]["TORCH"] <= steps + 9
    # A file written there has the same weights, and says that they were on a GPU.
    import torch

    files = [torch.load(tmp_path / name, map_location="cpu") for name in ("here.pt", "there.pt")]
    assert files[0]["net"].keys() == files[1]["net"].keys()
    assert all(torch.equal(files[0]["net"][name], files[1]["net"][name]) for name in files[0]["net"])
    assert b"cuda:0" in (tmp_path / "there.pt").read_bytes()


def test_a_transformer_with_an_average_workers_and_accumulation(programs: Programs) -> None:
    want = programs.on_cpu("transformer")
    got, crossed = programs.on_remote("transformer")
    assert got["losses"] == pytest.approx(want["losses"], rel=1e-4)
    assert got["right"] == want["right"]
    assert got["total"] == pytest.approx(want["total"], rel=1e-4)
    # One for each loss that is printed, one for each sum of a parameter at the end, and what begins and ends it.
    assert crossed["by_service"]["TORCH"] <= len(got["losses"]) + 40


def test_a_hugging_face_model_trains_and_generates(programs: Programs) -> None:
    pytest.importorskip("transformers")
    want = programs.on_cpu("huggingface")
    got, crossed = programs.on_remote("huggingface")
    assert got["losses"] == pytest.approx(want["losses"], rel=1e-4)
    assert got["generated"] == want["generated"]
    assert crossed["by_service"]["TORCH"] <= len(got["losses"]) + 20


def test_an_lstm_with_packed_sequences(programs: Programs) -> None:
    want = programs.on_cpu("lstm")
    got, crossed = programs.on_remote("lstm")
    assert got["losses"] == pytest.approx(want["losses"], rel=1e-4)
    assert crossed["by_service"]["TORCH"] <= len(got["losses"]) + 4


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_mixed_precision_with_a_scaler(programs: Programs, dtype: str) -> None:
    want = programs.on_cpu("amp", "--dtype", dtype)
    got, crossed = programs.on_remote("amp", "--dtype", dtype)
    # The lists of CUDA's autocast are longer than the CPU's: here the loss too is computed in float32.
    assert got["losses"] == pytest.approx(want["losses"], rel=0.02)
    assert set(got["types"]) == {"torch.float32", f"torch.{dtype}"}
    assert got["scales"] == want["scales"]
    # The loss, the scaler's question whether gradients are finite, and the scale.
    assert crossed["by_service"]["TORCH"] <= 3 * len(got["losses"]) + 4
