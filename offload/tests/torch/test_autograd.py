"""Gradients, modules and whole training steps on the remote device against the same here."""

import copy
from typing import Any

import pytest
import torch
from offload_torch import both, by_line, same, to_remote
from torch import nn
from torch.utils.checkpoint import checkpoint

from remotegpu_offload.torch import shown
from remotegpu_offload.torch.device import Remote

pytestmark = [pytest.mark.frameworks, pytest.mark.usefixtures("remote")]

A = torch.randn(4, 6)
B = torch.randn(4, 6)
I = torch.randint(0, 4, (3,))  # noqa: E741


class Cube(torch.autograd.Function):  # type: ignore[misc] # torch is not typed here
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad * 3 * x**2


def gradients(function: Any, *inputs: Any) -> Any:
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    out = function(*leaves)
    out.sum().backward()
    return out, [leaf.grad for leaf in leaves]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: (x * y).tanh(),
        lambda x, y: torch.softmax(x @ y.t(), 1),
        lambda x, y: Cube.apply(x) * y,
        lambda x, y: checkpoint(lambda a, b: (a.sin() * b).relu(), x, y, use_reentrant=False),
        lambda x, y: checkpoint(lambda a, b: (a.sin() * b).relu(), x, y, use_reentrant=True),
        lambda x, y: nn.functional.layer_norm(x, (6,)) * y,
        lambda x, y: x[y > 0].exp(),
        lambda x, y: nn.functional.scaled_dot_product_attention(x[None], y[None], x[None]),
        lambda x, y: torch.where(x > y, x, y * 2).norm(),
        lambda x, y: torch.linalg.solve(x[:, :4] + 5 * torch.eye(4, device=x.device), y),
    ],
    ids=by_line,
)
def test_gradients(function: Any) -> None:
    both(lambda x, y: gradients(function, x, y), A, B, rtol=1e-4, atol=1e-5)


def test_double_backward_and_retained_graphs() -> None:
    def second(x: Any) -> Any:
        x = x.detach().clone().requires_grad_()
        y = (x**3).sum()
        (first,) = torch.autograd.grad(y, x, create_graph=True)
        (twice,) = torch.autograd.grad(first.sum(), x, retain_graph=True)
        (again,) = torch.autograd.grad(first.sum(), x)
        return first, twice, again

    both(second, A)


def test_hooks() -> None:
    seen = []

    def tenfold(grad: Any) -> Any:
        seen.append(grad.device.type)
        return grad * 10

    x = to_remote(A).requires_grad_()
    y = x * 2
    y.register_hook(tenfold)
    x.register_post_accumulate_grad_hook(lambda leaf: seen.append("leaf"))
    y.sum().backward()
    same(x.grad, torch.full_like(A, 20))
    assert seen == [shown.NAME, "leaf"]


def test_saved_tensors_can_be_packed() -> None:
    x = to_remote(A).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.cpu(), lambda t: t.to(shown.NAME)):
        y = x.exp()
    y.sum().backward()
    same(x.grad, A.exp())


def test_inference_mode_and_no_grad() -> None:
    with torch.inference_mode():
        x = to_remote(A)
        same(x.add(1).mul_(2), (A + 1) * 2)
        assert x.add(1).is_inference()
    with torch.no_grad():
        assert not (to_remote(A).requires_grad_() + 1).requires_grad


def test_gradcheck() -> None:
    x = torch.randn(3, 3, dtype=torch.float64, device=shown.NAME, requires_grad=True)
    assert torch.autograd.gradcheck(lambda y: (y @ y).tanh(), (x,))
    assert torch.autograd.gradgradcheck(lambda y: y.sin(), (x,))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning")
def test_vmap_and_jacobians() -> None:
    both(lambda x: torch.func.vmap(lambda row: row.sin().sum())(x), A)
    both(lambda x: torch.func.jacrev(lambda y: (y**2).sum(1))(x), A)
    both(lambda x: torch.func.jvp(torch.tanh, (x,), (torch.ones_like(x),)), A)


# Modules


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.LSTM(5, 7, 2, batch_first=True), (3, 4, 5)),
        (nn.GRU(5, 7, bidirectional=True), (4, 3, 5)),
        (nn.RNN(5, 7), (4, 3, 5)),
        (nn.Conv2d(3, 4, 3, padding=1), (2, 3, 8, 8)),
        (nn.Sequential(nn.Conv1d(3, 6, 3), nn.BatchNorm1d(6), nn.ReLU(), nn.MaxPool1d(2)), (2, 3, 12)),
        (nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (2, 5, 8)),
        (nn.MultiheadAttention(8, 2, batch_first=True), (2, 5, 8)),
        (nn.GroupNorm(2, 4), (3, 4, 5)),
        (nn.Upsample(scale_factor=2, mode="bilinear"), (1, 2, 4, 4)),
        (nn.ConvTranspose2d(3, 2, 3), (1, 3, 5, 5)),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_modules(module: nn.Module, shape: tuple[int, ...], training: bool) -> None:
    """Forward, backward and buffers of a module moved there."""
    torch.manual_seed(3)
    x = torch.randn(shape)

    def run(net: nn.Module, batch: Any) -> Any:
        net.train(training)
        net.zero_grad()
        batch = batch.detach().requires_grad_()
        args = (batch, batch, batch) if isinstance(net, nn.MultiheadAttention) else (batch,)
        out = net(*args)
        first = out[0] if isinstance(out, tuple) else out
        first.square().mean().backward()
        return first, batch.grad, [p.grad for p in net.parameters()], list(net.buffers())

    want = run(copy.deepcopy(module), x)
    same(run(copy.deepcopy(module).to(shown.NAME), x.to(shown.NAME)), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.Adam(p, 0.01),
        lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
        lambda p: torch.optim.AdamW(p, 0.01, foreach=False),
        lambda p: torch.optim.RMSprop(p, 0.01),
        lambda p: torch.optim.Adagrad(p, 0.01),
        lambda p: torch.optim.LBFGS(p, 0.1, max_iter=3),
    ],
    ids=by_line,
)
def test_optimizers(make: Any) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))

    def train(net: nn.Module, x: Any) -> Any:
        optimizer = make(net.parameters())

        def closure() -> Any:
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            return loss

        for _ in range(4):
            optimizer.step(closure)
        return list(net.parameters())

    want = train(copy.deepcopy(model), A)
    same(train(copy.deepcopy(model).to(shown.NAME), A.to(shown.NAME)), want, rtol=1e-3, atol=1e-5)


def test_one_round_trip_for_a_training_step(remote: Remote) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2)).to(shown.NAME)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> float:
        optimizer.zero_grad()
        x, y = torch.randn(5, 6).to(shown.NAME), torch.randint(0, 2, (5,)).to(shown.NAME)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    step()
    counters = remote.source.peer.counters
    for _ in range(5):
        before = counters.by_service["TORCH"]
        step()
        assert counters.by_service["TORCH"] == before + 1
    before, misses = remote.stream.bytes, remote.engine.misses
    operations = remote.stream.operations
    step()
    assert remote.engine.misses == misses
    # A tenth of the 230 bytes of a pickled operation is 23; addresses alone are 8 for each tensor.
    assert (remote.stream.bytes - before) / (remote.stream.operations - operations) < 40
