"""Tensors as arguments and results of functions in the acceptor; remote ones stay where they are."""

import copy
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from offload_modules import UserModule
from offload_torch import same, to_cpu, to_remote
from torch import nn

from remotegpu_offload.client.session import Session
from remotegpu_offload.config.model import FunctionRule
from remotegpu_offload.objects.codec import CrossingError
from remotegpu_offload.torch import codec, device, shown, values
from remotegpu_offload.torch.storage import address_of

pytestmark = pytest.mark.frameworks

USER = UserModule("tensor_steps", FunctionRule("tensor_steps.*"), folder=Path(__file__).parent / "programs")


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """With the torch device, and with the user's functions under a rule."""
    with USER.session() as session:
        device.activate(session)
        yield session


@pytest.fixture
def steps(session: Session) -> Any:
    """The user's module with its functions replaced."""
    module = USER.replaced(session)
    assert module.where() != os.getpid()
    return module


def test_a_remote_tensor_stays_where_it_is(steps: Any, session: Session) -> None:
    """Not a byte of its content crosses, and operations before the call are done before it."""
    x = to_remote(torch.ones(1000, 1000))
    y = x + 1
    sent, received = session.peer.counters.bytes_out, session.peer.counters.bytes_in
    steps.add_one(y)
    assert session.peer.counters.bytes_out - sent < 10_000
    assert session.peer.counters.bytes_in - received < 10_000
    same(y[:2], torch.full((2, 1000), 3.0))
    same(x[:2], torch.ones(2, 1000))


def test_a_view_of_a_remote_tensor_comes_back_as_one(steps: Any) -> None:
    x = to_remote(torch.arange(6.0).view(2, 3))
    view = steps.transposed(x)
    assert view.device.type == shown.NAME
    same(view, torch.arange(6.0).view(2, 3).t())
    view.zero_()
    same(x, torch.zeros(2, 3))


def test_named_results_end_in_the_acceptor_too(steps: Any) -> None:
    remote = device.current()
    x = to_remote(torch.ones(3, 3))

    def alive() -> int:
        gc.collect()
        return int(remote.stream.ask("stats").header["storages"])

    before = alive()
    kept = [steps.transposed(x) for _ in range(5)]
    assert alive() == before + 5
    assert all(address_of(view) >> codec.SHIFT >= codec.FIRST_THERE for view in kept)
    kept.clear()
    assert alive() == before
    same(x + 1, torch.full((3, 3), 2.0))


def test_a_model_is_trained_by_a_function(steps: Any) -> None:
    """Its parameters live on the device; the function sees and changes them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    x = torch.randn(16, 4)
    there_model = copy.deepcopy(model).to(shown.NAME)
    want = [steps.train.__wrapped__(model, x, 0.1)]
    got = [steps.train(there_model, to_remote(x), 0.1)]
    assert got == pytest.approx(want, rel=1e-4)
    same(list(there_model.parameters()), list(model.parameters()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "x",
    [
        torch.arange(6).view(2, 3),
        torch.randn(3, 4).t(),
        torch.randn(4).to(torch.bfloat16),
        torch.tensor(2.5),
        torch.zeros(0, 3),
        torch.randn(3, dtype=torch.complex64).conj(),
        nn.Parameter(torch.randn(2)),
    ],
    ids=["int", "view", "bfloat16", "scalar", "empty", "conj", "parameter"],
)
def test_tensors_on_the_host_cross_by_value(steps: Any, x: Any) -> None:
    got = steps.double(x)
    assert got.device.type == "cpu"
    same(got, x * 2)


@pytest.mark.parametrize("place", [lambda x: x, to_remote], ids=["host", "remote"])
def test_a_result_with_a_history_in_the_acceptor_says_why_it_has_no_gradients(steps: Any, place: Any) -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(3, 1), torch.ones(2, 3)
    expected = model(x)
    model_there = place(copy.deepcopy(model)) if place is not to_remote else copy.deepcopy(model).to(shown.NAME)
    y = steps.forward(model_there, place(x))
    assert (y.requires_grad, y.is_leaf) == (expected.requires_grad, expected.is_leaf) == (True, False)
    same(y.detach(), expected.detach(), rtol=1e-5, atol=1e-6)
    with pytest.raises(RuntimeError, match=r"\bremotegpu\.yaml\b.*\bbackward\(\)"):
        y.square().mean().backward()
    # Computation in this process continues with it, in place too.
    y.mul_(2)
    same(y.detach(), expected.detach() * 2, rtol=1e-5, atol=1e-6)
    weight = torch.ones(1, device=y.device, requires_grad=True)
    (y.detach() * weight).sum().backward()
    assert weight.grad is not None
    with torch.no_grad():
        assert not steps.forward(model_there, place(x)).requires_grad
    # It goes there again as a value.
    same(steps.double(y).detach(), expected.detach() * 4, rtol=1e-5, atol=1e-6)


def test_what_describes_tensors_crosses(steps: Any) -> None:
    told = steps.describe(to_remote(torch.ones(2, 3, dtype=torch.float16)).requires_grad_())
    assert told == {
        "dtype": torch.float16,
        "size": torch.Size([2, 3]),
        "device": told["device"],
        "wants": True,
        "format": torch.preserve_format,
    }
    assert isinstance(told["size"], torch.Size)


def test_structures_and_identity(steps: Any) -> None:
    x = to_remote(torch.arange(3.0))
    assert steps.same([x, x])
    assert not steps.same([x, x.clone()])
    told = steps.mixed({"x": x, "host": torch.ones(2)})
    assert told["sum"] == 3.0
    same(told["tuple"][0], torch.full((2,), 2.0))
    same(told["tuple"][1], torch.tensor(0.0))


def test_an_operation_that_failed_is_raised_in_the_call(steps: Any) -> None:
    wrong = to_remote(torch.ones(3))[to_remote(torch.tensor([8]))]
    with pytest.raises(RuntimeError, match=r"aten::index\.Tensor"):
        steps.double(wrong)
    with pytest.raises(IndexError):
        device.current().synchronize()


def test_sparse_tensors_are_refused(steps: Any) -> None:
    with pytest.raises(CrossingError, match="sparse_coo"):
        steps.double(torch.eye(3).to_sparse())


@pytest.mark.parametrize(
    "arguments",
    [
        (0, ["float32", [2], [1], 0], 8, False, False),
        (codec.FIRST_THERE << codec.SHIFT, ["float32", [20], [1], 0], 8, False, False),
        (codec.FIRST_THERE << codec.SHIFT, ["float32", [-2], [1], 0], 8, False, False),
        (codec.FLOOR, ["float32", [2], [1], 0], 8, False, False),
        ((codec.FIRST_THERE << codec.SHIFT) + (1 << 70), ["float32", [2], [1], 0], 8, False, False),
    ],
)
def test_an_acceptor_cannot_name_what_is_not_its_own(session: Session, arguments: Any) -> None:
    """A hostile one could otherwise free, or pass for, a storage of the program."""
    with pytest.raises(ValueError):  # noqa: PT011 - torch itself would raise others
        values.named(*arguments)


def test_bytes_of_a_hostile_acceptor_are_measured() -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - torch itself would raise RuntimeError
        values.host(b"1234", ["float32", [2], [1], 0], False, False)
    with pytest.raises(ValueError):  # noqa: PT011 - torch itself would raise RuntimeError
        values.host(b"12345678", ["float32", [2], [5], 0], False, False)
    same(values.host(b"\0" * 8, ["float32", [2], [1], 0], True, True), torch.zeros(2))
    assert to_cpu(torch.zeros(1)) == 0
