"""Checkpoints: files of the remote device open anywhere, and files from anywhere open on it."""

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from offload_armed import trips
from torch import nn

from remotegpu_offload.client.session import Session
from remotegpu_offload.torch.stream import link

pytestmark = [pytest.mark.frameworks, pytest.mark.usefixtures("armed")]


def model() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3)).cuda()


def written(value: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


def test_saving_asks_once_and_loading_not_at_all(armed: Session) -> None:
    state = model().state_dict()
    torch.cuda.synchronize()
    before = trips(armed)
    data = written(state)
    assert trips(armed) == before + 1
    loaded = torch.load(io.BytesIO(data))
    assert trips(armed) == before + 1
    assert all(tensor.is_cuda for tensor in loaded.values())
    for name, tensor in state.items():
        assert torch.equal(loaded[name].cpu(), tensor.cpu())


def test_the_file_says_cuda_and_opens_without_us(tmp_path: Path) -> None:
    state = model().state_dict()
    path = tmp_path / "model.pt"
    torch.save(state, path)
    assert b"cuda:0" in path.read_bytes() and b"remote" not in path.read_bytes()
    code = (
        "import sys, torch; state = torch.load(sys.argv[1], map_location='cpu'); "
        "print(sum(t.double().sum().item() for t in state.values()))\n"
        "try: torch.load(sys.argv[1])\n"
        "except RuntimeError as error: assert 'CUDA' in str(error) or 'cuda' in str(error), error"
    )
    told = subprocess.run([sys.executable, "-c", code, path], check=True, capture_output=True, text=True).stdout
    assert float(told) == pytest.approx(sum(t.double().sum().item() for t in state.values()), rel=1e-12)


@pytest.mark.parametrize(
    ("where", "device"),
    [
        (None, "cuda:0"),
        ("cuda", "cuda:0"),
        ("cuda:0", "cuda:0"),
        (torch.device("cuda"), "cuda:0"),
        ("cpu", "cpu"),
        (torch.device("cpu"), "cpu"),
        ({"cuda:0": "cpu"}, "cpu"),
        (lambda storage, _location: storage, "cpu"),
        (lambda storage, _location: storage.cuda(), "cuda:0"),
        ("meta", "meta"),
    ],
)
def test_every_map_location(where: Any, device: str) -> None:
    loaded = torch.load(io.BytesIO(written({"x": torch.arange(6.0, device="cuda").view(2, 3)})), map_location=where)
    assert str(loaded["x"].device) == device
    if device != "meta":
        assert loaded["x"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_file_of_the_cpu_opens_on_the_device() -> None:
    data = written({"x": torch.arange(3.0)})
    assert torch.load(io.BytesIO(data), map_location="cuda")["x"].is_cuda
    assert not torch.load(io.BytesIO(data))["x"].is_cuda


def test_tensors_on_one_storage_stay_on_one() -> None:
    base = torch.arange(10.0, device="cuda")
    data = written({"all": base, "some": base[2:5], "turned": base.view(2, 5).t()})
    assert len(data) < 3000
    loaded = torch.load(io.BytesIO(data))
    loaded["all"].mul_(2)
    assert loaded["some"].tolist() == [4, 6, 8]
    assert loaded["turned"].shape == (5, 2) and loaded["turned"][1].tolist() == [2, 12]
    assert loaded["some"].untyped_storage().data_ptr() == loaded["all"].untyped_storage().data_ptr()


def test_a_whole_training_goes_on_from_its_file(tmp_path: Path) -> None:
    def step(net: Any, optimizer: Any) -> float:
        optimizer.zero_grad()
        loss = net(torch.ones(2, 1, 4, 4, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    for _ in range(3):
        step(net, optimizer)
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "a.pt")
    want = [step(net, optimizer) for _ in range(3)]
    other = model()
    again = torch.optim.AdamW(other.parameters(), 0.01)
    saved = torch.load(tmp_path / "a.pt", weights_only=True)
    other.load_state_dict(saved["net"])
    again.load_state_dict(saved["optimizer"])
    assert [step(other, again) for _ in range(3)] == want


def test_deep_copies_pickles_and_the_old_format() -> None:
    net = model()
    twin = copy.deepcopy(net)
    with torch.no_grad():
        twin[3].weight.zero_()
    assert twin[3].weight.is_cuda and net[3].weight.abs().sum().item() > 0
    tied = nn.Linear(2, 2).cuda()
    pair = copy.deepcopy([tied.weight, tied.weight])
    assert pair[0] is pair[1]
    assert torch.equal(pickle.loads(pickle.dumps(net[3].bias)).cpu(), net[3].bias.detach().cpu())
    old = written({"x": torch.arange(3.0, device="cuda")}, _use_new_zipfile_serialization=False)
    loaded = torch.load(io.BytesIO(old))["x"]
    assert loaded.is_cuda and loaded.tolist() == [0, 1, 2]


def test_many_storages_travel_together_but_not_all_at_once(
    armed: Session,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from remotegpu_offload.torch.script import checkpoint

    monkeypatch.setattr(checkpoint, "TOGETHER", 1000)
    state = [torch.full((100,), float(i), device="cuda") for i in range(10)]
    torch.cuda.synchronize()
    before = trips(armed)
    data = written(state)
    assert trips(armed) == before + 5
    assert [tensor[0].item() for tensor in torch.load(io.BytesIO(data))] == list(range(10))


def test_a_save_that_fails_leaves_nothing_behind() -> None:
    class Full(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            raise OSError("no space")

    tensor = torch.zeros(3, device="cuda")
    with pytest.raises((OSError, RuntimeError)):
        torch.save([tensor, torch.ones(3, device="cuda")], Full())
    tensor.add_(1)
    assert torch.load(io.BytesIO(written([tensor])))[0].tolist() == [1, 1, 1]


def test_safetensors(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    state = {"a": torch.arange(6.0, device="cuda").view(2, 3), "b": torch.ones(2, dtype=torch.int64, device="cuda")}
    safetensors.save_file(state, tmp_path / "x.safetensors")
    for device in ("cpu", "cuda", "cuda:0"):
        loaded = safetensors.load_file(tmp_path / "x.safetensors", device=device)
        assert loaded["a"].is_cuda == (device != "cpu")
        assert loaded["a"].tolist() == state["a"].tolist() and loaded["b"].tolist() == [1, 1]


def test_storages_move_by_themselves() -> None:
    storage = torch.arange(4, dtype=torch.uint8, device="cuda").untyped_storage()
    assert list(storage.cpu()) == [0, 1, 2, 3] and storage.tolist() == [0, 1, 2, 3]
    assert storage.cuda() is storage and storage.cpu().cuda().device == torch.device("cuda:0")
    other = torch.UntypedStorage(4, device="cuda")
    other.copy_(storage)
    assert other.clone().tolist() == [0, 1, 2, 3]
    assert link.is_open()
