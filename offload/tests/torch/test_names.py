"""An unmodified script's view when `cuda` is the remote device (traps 7, 9 and 11 of the design)."""

import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from offload_armed import trips
from torch import nn

from remotegpu_offload.client.session import Session
from remotegpu_offload.torch import layouts, shown
from remotegpu_offload.torch.cuda import refused
from remotegpu_offload.torch.script import names

pytestmark = [pytest.mark.frameworks, pytest.mark.usefixtures("armed")]

CUDA = torch.device("cuda", 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(2, 3, device="cuda"),
        lambda: torch.zeros(2, 3, device="cuda:0"),
        lambda: torch.zeros(2, 3, device=torch.device("cuda")),
        lambda: torch.zeros(2, 3, device=torch.device("cuda", 0)),
        lambda: torch.zeros(2, 3, device=0),
        lambda: torch.zeros(2, 3).cuda(),
        lambda: torch.zeros(2, 3).cuda(0),
        lambda: torch.zeros(2, 3).cuda(CUDA, non_blocking=True),
        lambda: torch.zeros(2, 3).to("cuda"),
        lambda: torch.zeros(2, 3).to("cuda", torch.float64),
        lambda: torch.zeros(2, 3).to(0),
        lambda: torch.zeros(2, 3).to(device="cuda", dtype=torch.int32),
        lambda: torch.zeros(2, 3).to(torch.ones(1, device="cuda")),
        lambda: torch.tensor([[0, 0, 0]] * 2, device="cuda"),
        lambda: torch.as_tensor([[0, 0, 0]] * 2, device="cuda"),
        lambda: torch.asarray([[0, 0, 0]] * 2, device="cuda"),
        lambda: torch.empty(2, 3, device="cuda").fill_(0),
        lambda: torch.full((2, 3), 0.0, device="cuda"),
        lambda: torch.zeros_like(torch.ones(2, 3), device="cuda"),
        lambda: torch.ones(1).new_zeros(2, 3, device="cuda"),
        lambda: torch.ones(1, device="cuda").new_zeros(2, 3),
        lambda: torch.zeros(2, 3).type("torch.cuda.FloatTensor"),
        lambda: torch.zeros(2, 3).type(torch.cuda.HalfTensor),
        lambda: torch.cuda.FloatTensor(2, 3).zero_(),
        lambda: torch.cuda.LongTensor([[0, 0, 0]] * 2),
        lambda: torch.zeros(2, 3, device="xpu"),
        lambda: torch.zeros(2, 3).to(torch.device("mps")),
        lambda: nn.Parameter(torch.zeros(2, 3, device="cuda")),
    ],
    ids=lambda make: f"line{make.__code__.co_firstlineno}",
)
def test_every_way_to_name_the_device(make: Callable[[], Any]) -> None:
    made = make()
    assert made.device == CUDA
    assert made.device.type == "cuda" and str(made.device) == "cuda:0" and made.device.index == 0
    assert made.is_cuda and not made.is_cpu
    assert made.get_device() == 0
    assert made.shape == (2, 3)
    assert not made.cpu().any()
    assert not made.cpu().is_cuda and made.cpu().device == torch.device("cpu")


def test_functions_with_a_device_that_are_no_plain_constructors() -> None:
    functions: list[Callable[..., Any]] = [
        lambda **device: torch.arange(5, **device),
        lambda **device: torch.linspace(0, 1, 5, **device),
        lambda **device: torch.eye(3, **device),
        lambda **device: torch.hann_window(8, **device),
        lambda **device: torch.signal.windows.hamming(8, **device),
        lambda **device: torch.fft.fftfreq(8, **device),
        lambda **device: torch.fft.rfftfreq(8, **device),
        lambda **device: torch.tril_indices(3, 3, **device),
        lambda **device: torch.scalar_tensor(3.0, **device),
        lambda **device: torch.logspace(0, 2, 3, **device),
    ]
    for function in functions:
        made = function(device="cuda")
        assert made.is_cuda
        torch.testing.assert_close(made.cpu(), function())


def test_text_and_types_speak_of_cuda() -> None:
    x = torch.zeros(2, device="cuda")
    assert repr(x) == "tensor([0., 0.], device='cuda:0')"
    assert x.type() == "torch.cuda.FloatTensor"
    assert torch.zeros(2).type() == "torch.FloatTensor"
    assert isinstance(x, torch.cuda.FloatTensor) and not isinstance(torch.zeros(2), torch.cuda.FloatTensor)
    assert x.untyped_storage().device == CUDA and x.untyped_storage().is_cuda
    assert "device=cuda:0" in repr(x.untyped_storage())
    assert not x.is_xpu and not x.is_mps


def test_modules_and_their_devices() -> None:
    for module in (
        nn.Linear(3, 2).cuda(),
        nn.Linear(3, 2).to("cuda"),
        nn.Linear(3, 2, device="cuda"),
        nn.Linear(3, 2, device="meta").to_empty(device="cuda"),
        nn.Linear(3, 2).to(torch.device("cuda:0"), torch.float64),
    ):
        assert {parameter.device for parameter in module.parameters()} == {CUDA}
        assert isinstance(module.weight, nn.Parameter) and module.weight.requires_grad
    module = nn.BatchNorm1d(3).cuda()
    assert module.running_mean.is_cuda
    assert not module.cpu().running_mean.is_cuda


def test_parameters_that_move_stay_the_same_objects() -> None:
    """Modules that share one go on sharing it, and an optimizer that was made before trains it."""

    def train(where: str) -> tuple[list[float], Any]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False))
        net[1].weight = net[0].weight
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
        before = [id(parameter) for parameter in net.parameters()]
        net.to(where)
        assert before == [id(parameter) for parameter in net.parameters()] and net[1].weight is net[0].weight
        losses = []
        for _ in range(4):
            loss = torch.nn.functional.cross_entropy(net(torch.arange(5, device=where)), torch.arange(5, device=where))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        # While a graph has the parameters.
        kept = net(torch.arange(5, device=where)).sum()
        net.cpu()
        return losses, (kept.item(), net[0].weight.detach())

    (got, (_, weight)), (want, (_, other)) = train("cuda"), train("cpu")
    assert got == pytest.approx(want, rel=1e-5) and got[-1] < got[0]
    assert torch.allclose(weight, other, atol=1e-5) and weight.device.type == "cpu"


def test_threads_that_move_modules_do_not_mind_each_other() -> None:
    """Some modules can keep their parameters, others cannot, since there are weak references to them."""
    problems: list[Exception] = []
    together = threading.Barrier(4)

    def move() -> None:
        together.wait(60)
        try:
            for step in range(12):
                net = nn.Linear(3, 3)
                kept = [weakref.ref(each) for each in net.parameters()] if step % 2 else []
                before = [id(each) for each in net.parameters()]
                net.to("cuda")
                assert kept or before == [id(each) for each in net.parameters()]
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=move) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not problems


def test_lazy_modules_move_before_they_have_shapes() -> None:
    def run(where: str) -> torch.Tensor:
        torch.manual_seed(0)
        net = nn.Sequential(nn.LazyConv1d(4, 2), nn.LazyBatchNorm1d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
        net.to(where)
        assert torch.nn.parameter.is_lazy(net[0].weight) and torch.nn.parameter.is_lazy(net[1].running_mean)
        with torch.no_grad():
            net(torch.ones(3, 2, 5, device=where))
        assert {each.device.type for each in (*net.parameters(), *net.buffers())} == {where}
        # The device has random numbers of its own.
        for each in net.parameters():
            nn.init.constant_(each, 0.25)
        return net(torch.arange(30.0, device=where).reshape(3, 2, 5)).cpu()

    assert torch.allclose(run("cuda"), run("cpu"), atol=1e-5)


def test_default_devices() -> None:
    with torch.device("cuda"):
        assert torch.zeros(2).is_cuda
        assert torch.get_default_device() == CUDA
        assert nn.Linear(2, 2).weight.is_cuda
        assert not torch.zeros(2, device="cpu").is_cuda
    assert not torch.zeros(2).is_cuda
    torch.set_default_device("cuda")
    try:
        assert torch.tensor([1.0]).is_cuda and torch.rand(2).is_cuda
        assert torch.get_default_device() == CUDA
    finally:
        torch.set_default_device(None)
    torch.set_default_tensor_type("torch.cuda.DoubleTensor")
    try:
        assert torch.zeros(2).is_cuda and torch.zeros(2).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert not torch.zeros(2).is_cuda


def test_other_devices_are_left_alone() -> None:
    assert torch.zeros(2, device="cpu").device == torch.device("cpu")
    assert torch.zeros(2, device="meta").is_meta
    assert torch.zeros(2).to(torch.float64).dtype == torch.float64
    assert torch.zeros(2).to(torch.ones(1, dtype=torch.int8)).dtype == torch.int8


@pytest.mark.parametrize("device", ["cuda:1", torch.device("cuda", 3), 2])
def test_a_device_that_does_not_exist(device: Any) -> None:
    with pytest.raises(RuntimeError, match=r"\bcuda:0\b"):
        torch.zeros(2).to(device)
    if not isinstance(device, int):
        with pytest.raises(RuntimeError, match=r"\bcuda:0\b"):
            torch.zeros(2, device=device)


def test_names_hold_in_every_thread_also_in_those_of_torch() -> None:
    found: list[Any] = []

    class Twice(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            found.append((threading.current_thread() is thread, gradient.device, torch.zeros(1, device="cuda").device))
            return gradient * 2

    def work() -> None:
        x = torch.ones(3, device="cuda", requires_grad=True)
        Twice.apply(x).sum().backward()
        found.append(x.grad.tolist())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert [entry[1:] for entry in found[:1]] == [(CUDA, CUDA)]
    assert found[1] == [2.0, 2.0, 2.0]


def test_devices_compare_and_mix_as_with_cuda() -> None:
    x = torch.ones(3, device="cuda")
    assert (x + 1).device == x.device == torch.device("cuda:0")
    assert x.to(x.device) is x and x.cuda() is x and x.to("cuda:0") is x
    assert (x * torch.tensor(2.0)).tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(RuntimeError, match=r"\bcuda:0\b.*\bcpu\b.*\baten::add\.Tensor\b"):
        x + torch.ones(3)


def test_numpy_dlpack_and_other_ways_into_its_memory_are_closed() -> None:
    x = torch.ones(3, device="cuda")
    with pytest.raises(TypeError, match=r"\bcuda:0\b.*\bTensor\.cpu\(\)"):
        x.numpy()
    with pytest.raises(TypeError, match=r"\bcuda:0\b.*\bTensor\.cpu\(\)"):
        np.asarray(x)
    # And what torch says of others is left as it is.
    with pytest.raises(TypeError, match="positional"):
        torch.ones(1).numpy(1, 2, 3)
    with pytest.raises(BufferError, match=r"\bTensor\.__dlpack__:.*\.cpu\(\)"):
        torch.from_dlpack(x)
    assert not hasattr(x, "__cuda_array_interface__")
    assert x.cpu().numpy().tolist() == [1.0, 1.0, 1.0]


def test_to_share_memory_is_nothing_to_do_as_on_cuda() -> None:
    x = torch.ones(3, device="cuda")
    assert x.share_memory_() is x and x.is_shared() and x.tolist() == [1.0, 1.0, 1.0]
    net = nn.Linear(2, 1).cuda()
    net.share_memory()
    assert net(torch.ones(1, 2, device="cuda")).shape == (1, 1)
    y = torch.ones(3)
    assert not y.is_shared() and y.share_memory_() is y and y.is_shared()


def test_naming_a_device_asks_nobody(armed: Session) -> None:
    x = torch.ones(3, device="cuda")
    before = trips(armed)
    for _ in range(10):
        assert x.device == CUDA and x.is_cuda and x.type() == "torch.cuda.FloatTensor"
        x = (x + torch.zeros(3).cuda()).to("cuda")
    assert trips(armed) == before
    assert x.tolist() == [1.0, 1.0, 1.0]
    assert trips(armed) == before + 1


def test_torchscript_still_finds_the_functions_behind_the_names() -> None:
    with pytest.warns(FutureWarning):
        scripted = torch.jit.script(_scripted)
    assert scripted(torch.ones(2)).tolist() == [1.0, 1.0]


def _scripted(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(2) + x


def test_wrong_names_are_refused() -> None:
    assert shown.names() == ("cuda", "xpu", "mps")
    names.arm(("cuda",))
    assert shown.names() == ("cuda", "xpu", "mps")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: torch.sparse_coo_tensor([[0], [1]], [1.0], (2, 2), device="cuda"), layouts.SPARSE),
        (lambda: torch.eye(2).to_sparse().to("cuda"), layouts.SPARSE),
        (lambda: torch.eye(2, device="cuda").to_sparse(), layouts.SPARSE),
        (lambda: torch.empty(2, dtype=torch.qint8, device="cuda"), layouts.QUANTIZED),
        (lambda: torch.quantize_per_tensor(torch.ones(2, device="cuda"), 0.1, 0, torch.qint8), layouts.QUANTIZED),
        (lambda: torch.ones(2, device="cuda").to_mkldnn(), layouts.ONEDNN),
        (lambda: torch.nested.nested_tensor([torch.ones(2)], device="cuda"), layouts.NESTED),
        (lambda: torch.nested.as_nested_tensor([torch.ones(2, device="cuda")]), layouts.NESTED),
        (lambda: torch.nested.nested_tensor([torch.ones(2)]).cuda(), layouts.NESTED),
        (
            lambda: torch._nested_tensor_from_mask(
                torch.ones(1, 2, 3).cuda(), torch.ones(1, 2, dtype=torch.bool).cuda()
            ),
            layouts.NESTED,
        ),
    ],
    ids=(
        "made",
        "moved",
        "converted",
        "quantized",
        "quantized there",
        "oneDNN",
        "nested",
        "nested there",
        "nested and moved",
        "nested from a mask",
    ),
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_the_device_lacks_is_one_sentence(make: Callable[[], Any], reason: str) -> None:
    with pytest.raises(NotImplementedError) as caught:
        make()
    said = str(caught.value)
    assert said.startswith(("aten::", "torch.nested")) and reason in said and refused.WHOLE in said
    assert "\n" not in said


def test_jagged_tensors_are_dense_ones_with_offsets() -> None:
    """The nested tensors that the sentence above advises."""
    rows = [torch.randn(2, 3), torch.randn(4, 3)]

    def run(device: str) -> Any:
        x = torch.nested.nested_tensor(rows, layout=torch.jagged, device=device, requires_grad=True)
        y = torch.nested.nested_tensor(rows, layout=torch.jagged).to(device)
        out = torch.nn.functional.softmax(x * 2, -1)
        out.to_padded_tensor(0.5).square().sum().backward()
        return (
            out.to_padded_tensor(0.5).cpu(),
            out.sum(1).cpu(),
            y.values().cpu(),
            [row.cpu() for row in out.unbind()],
            x.grad.values().cpu(),
        )

    torch.testing.assert_close(run("cuda"), run("cpu"))
