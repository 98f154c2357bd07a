"""ONNX Runtime's profile, tested without ONNX Runtime: the choice of providers, and the files that a model names."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

from remotegpu_offload.functions.inference import model
from remotegpu_offload.functions.inference.acceptor import Opening, available_providers, opened
from remotegpu_offload.functions.inference.shells import profile_path
from remotegpu_offload.objects.codec import RefusedError

CPU, CUDA, MIGRAPHX = "CPUExecutionProvider", "CUDAExecutionProvider", "MIGraphXExecutionProvider"


@pytest.mark.parametrize(
    ("available", "providers", "options", "expected"),
    [
        # As it is: there is CUDA, or nothing that could stand for it, or it is not asked for.
        ([CUDA, CPU], [CUDA, CPU], None, ([CUDA, CPU], None)),
        (
            ["AzureExecutionProvider", CPU],
            [(CUDA, {"device_id": 0}), CPU],
            None,
            ([(CUDA, {"device_id": 0}), CPU], None),
        ),
        ([MIGRAPHX, CPU], [CPU], None, ([CPU], None)),
        ([MIGRAPHX, CPU], None, None, (None, None)),
        ([MIGRAPHX, CPU], 3, None, (3, None)),
        ([MIGRAPHX, CPU], [], None, ([], None)),
        # The first accelerator stands for it, without options for CUDA.
        ([MIGRAPHX, CPU], [CUDA, CPU], None, ([MIGRAPHX, CPU], None)),
        ([MIGRAPHX, "OpenVINOExecutionProvider", CPU], (CUDA,), None, ([MIGRAPHX], None)),
        ([MIGRAPHX, CPU], [(CUDA, {"device_id": 0}), CPU], None, ([MIGRAPHX, CPU], None)),
        ([MIGRAPHX, CPU], [CUDA, CPU], [{"device_id": 0}, {"x": 1}], ([MIGRAPHX, CPU], [{}, {"x": 1}])),
        ([MIGRAPHX, CPU], ["TensorrtExecutionProvider", CUDA], None, (["TensorrtExecutionProvider", MIGRAPHX], None)),
        # It is asked for itself already.
        ([MIGRAPHX, CPU], [MIGRAPHX, CUDA, CPU], [{"a": 1}, {}, {}], ([MIGRAPHX, CPU], [{"a": 1}, {}])),
        # Wrong options stay as wrong as they are.
        ([MIGRAPHX, CPU], [CUDA, CPU], [{}], ([MIGRAPHX, CPU], [{}])),
    ],
)
def test_the_providers_that_cuda_means(available: list[str], providers: Any, options: Any, expected: Any) -> None:
    assert available_providers(providers, options, available) == expected


def field(number: int, contents: bytes) -> bytes:
    size, written = len(contents), bytearray()
    while size > 0x7F:
        written.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 & 0x7F | 2 | (0x80 if number > 15 else 0), *([number >> 4] if number > 15 else [])]) + (
        bytes(written) + bytes([size]) + contents
    )


def tensor(location: bytes) -> bytes:
    return field(13, field(1, b"location") + field(2, location)) + field(13, field(1, b"offset") + field(2, b"4096"))


def model_with(location: bytes) -> bytes:
    """Builds ir_version, and a graph with an initializer of much text."""
    return b"\x08\x08" + field(7, field(10, b"x" * 1000) + field(5, tensor(location)))


def test_files_are_found_wherever_a_tensor_may_be() -> None:
    attribute = field(5, tensor(b"t"))
    nested = field(6, field(1, field(5, field(6, field(5, tensor(b"deep"))))))
    lists = field(10, tensor(b"listed")) + field(22, field(1, tensor(b"values")) + field(2, tensor(b"indices")))
    node = field(5, attribute) + field(5, nested) + field(5, lists)
    written = field(7, field(1, node) + field(15, field(1, tensor(b"sparse")))) + field(
        25, field(7, field(5, attribute))
    )
    assert model.external_files(written) == {"t", "deep", "listed", "values", "indices", "sparse"}


@pytest.mark.parametrize("location", [b"../x", b"/etc/passwd", b"a/../../x", b"..", b"a\0b", b"", b"\xff"])
def test_no_file_outside_of_the_models_folder_is_named(location: bytes) -> None:
    assert model.external_files(model_with(b"fine/x.bin")) == {"fine/x.bin"}
    assert model.external_files(model_with(location)) == set()


def test_anything_may_stand_in_a_file() -> None:
    given = model_with(b"x.bin")
    chance = random.Random(0)
    for _ in range(3000):
        changed = bytearray(given[: chance.randrange(len(given) + 1)])
        for _ in range(chance.randrange(4)):
            if changed:
                changed[chance.randrange(len(changed))] = chance.randrange(256)
        for name in model.external_files(bytes(changed)):
            assert not name.startswith("/") and ".." not in Path(name).parts
    assert model.external_files(b"\xff" * 100) == model.external_files(b"") == set()
    # A node within a node, and so on: no recursion.
    deep = b""
    for _ in range(3000):
        deep = field(1, field(5, field(6, deep)))
    assert model.external_files(field(7, deep)) == set()


def test_a_model_is_laid_out_as_it_was(tmp_path: Path) -> None:
    here, remote = tmp_path / "here", tmp_path / "there"
    (here / "sub").mkdir(parents=True)
    (here / "m.onnx").write_bytes(model_with(b"sub/w.bin"))
    (here / "sub" / "w.bin").write_bytes(b"weights")
    (here / "other").write_bytes(b"not named")
    read = model.read(str(here / "m.onnx"))
    assert read.beside == {"sub/w.bin": b"weights"}
    assert model.write(read, str(remote)) == str(remote / "m.onnx")
    assert model.read(str(remote / "m.onnx")) == read and not (remote / "other").exists()
    (here / "sub" / "w.bin").unlink()
    assert model.read(str(here / "m.onnx")).beside == {}
    with pytest.raises(FileNotFoundError):
        model.read(str(here / "none.onnx"))


def test_a_profile_is_written_where_the_program_said() -> None:
    assert profile_path("/a/mine", "mine_2026-11-22_03-50-54.json") == Path("/a/mine_2026-11-22_03-50-54.json")
    assert profile_path("b", "b_1.json") == Path("b_1.json")


@pytest.mark.parametrize(
    "name",
    [".bashrc", "../mine_1.json", "mine_/../x.json", "mine_1.json\n", "mine_1.py", "mine.json", "yours_1.json", 3],
)
def test_an_acceptor_names_no_other_file(name: Any) -> None:
    with pytest.raises(RefusedError):
        profile_path("/a/mine", name)


def test_an_acceptor_without_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)

    class Session:
        pass

    with pytest.raises(ModuleNotFoundError, match="onnxruntime"):
        opened(Session, Opening(b"", None, None, None, {}))
