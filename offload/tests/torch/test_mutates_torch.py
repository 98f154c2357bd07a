"""Training by `mutates` and by `ref`: losses, weights, states and who shares what, as of the same loop here."""

import copy
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from offload_modules import UserModule
from torch import nn

from remotegpu_offload.client.session import Session
from remotegpu_offload.config import parse
from remotegpu_offload.config.model import FunctionRule
from remotegpu_offload.functions import client
from remotegpu_offload.objects.codec import CrossingError
from remotegpu_offload.torch import device

pytestmark = pytest.mark.frameworks

USER = UserModule("trainer", folder=Path(__file__).parent / "programs")
DOCUMENT = Path(__file__).parents[3] / "docs" / "offload.md"

Ruled = Callable[..., Any]


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with USER.session() as session:
        device.activate(session)
        yield session


@pytest.fixture
def trainer(session: Session) -> ModuleType:
    return USER.load()


@pytest.fixture
def ruled(session: Session, trainer: ModuleType) -> Ruled:
    """A function of the trainer under a rule."""

    def make(name: str, **rule: Any) -> Any:
        return client.wrap(getattr(trainer, name), FunctionRule(f"trainer.{name}", **rule), session)

    assert make("where")() != os.getpid()
    return make


def weights(model: Any) -> dict[str, Any]:
    return copy.deepcopy(dict(model.state_dict()))


def equal(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def documented() -> FunctionRule:
    """The rule of the configuration that docs/offload.md shows."""
    text = re.search(r"```yaml\n(version: 1\n.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert text is not None
    rule = next(rule for rule in parse(text[1]).rules if isinstance(rule, FunctionRule))
    assert rule.pattern.endswith(".train_epoch")
    return rule


BOTH = {"model": "ref", "opt": "ref"}


@pytest.mark.parametrize("kind", ["Adam", "SGD"])
@pytest.mark.parametrize(
    "rule",
    [
        {"mutates": ("model", "opt")},
        {"mutates": "auto"},
        {"args": BOTH, "mutates": ("model", "opt")},
        {"args": documented().args, "mutates": documented().mutates},
    ],
    ids=["value", "auto", "ref", "documented"],
)
def test_training_is_that_of_the_same_loop_here(trainer: Any, ruled: Ruled, kind: str, rule: Any) -> None:
    model, opt, batch = trainer.make(kind)
    expected, local_opt, _ = trainer.make(kind)
    parameters = list(model.parameters())
    epoch = ruled("train_epoch", **rule)
    for _ in range(3):
        assert epoch(model, opt, batch) == trainer.train_epoch(expected, local_opt, batch)
        equal(weights(model), weights(expected))
        equal([one.grad for one in parameters], [one.grad for one in expected.parameters()])
    equal(opt.state_dict(), local_opt.state_dict())
    assert model.seen == expected.seen and model.tied is model.first.weight
    for mine, found in ((parameters, list(model.parameters())), (parameters, opt.param_groups[0]["params"])):
        assert all(one is other for one, other in zip(mine, found, strict=True))
    assert {id(one) for one in opt.state} == {id(one) for one in parameters}
    # Training continues in this process from there.
    if "args" not in rule:
        assert trainer.train_epoch(model, opt, batch) == trainer.train_epoch(expected, local_opt, batch)


@pytest.mark.parametrize("args", [{}, BOTH], ids=["value", "ref"])
def test_a_remote_model_is_trained_where_it_is(trainer: Any, ruled: Ruled, args: Any) -> None:
    given, expected = trainer.make()[0], trainer.make()[0]
    batch = trainer.make()[2]
    remote = device.current().device
    given.to(remote)
    # Their parameters are others from now on, as on any device that torch does not have of its own.
    given.tied = given.first.weight
    opt, local_opt = (torch.optim.Adam(model.parameters(), lr=0.05) for model in (given, expected))
    epoch, parameters = ruled("train_epoch", args=args, mutates=("model", "opt")), list(given.parameters())
    for _ in range(3):
        loss = epoch(given, opt, batch.to(remote))
        assert loss == pytest.approx(trainer.train_epoch(expected, local_opt, batch), rel=1e-4)
    for one, other in zip(given.state_dict().values(), expected.state_dict().values(), strict=True):
        assert one.device == remote
        torch.testing.assert_close(one.cpu(), other)
    assert all(one is other for one, other in zip(parameters, given.parameters(), strict=True))
    assert all(one.grad.device == remote for one in parameters)


def test_schedules_hooks_and_frozen_parameters(trainer: Any, ruled: Ruled) -> None:
    def make() -> Any:
        model, opt, batch = trainer.make()
        opt.register_step_pre_hook(lambda *_: steps.append(1))
        return model, opt, torch.optim.lr_scheduler.StepLR(opt, 2, 0.5), batch

    steps: list[int] = []
    given, local = make(), make()
    both = ruled("train_both", mutates=("model", "opt", "schedule"))
    with pytest.warns(UserWarning, match=r"lr_scheduler\.step"):
        losses = [both(*given) for _ in range(3)]
    assert losses == [trainer.train_both(*local) for _ in range(3)]
    equal(given[1].state_dict(), local[1].state_dict())
    assert given[2].optimizer is given[1] and given[2].last_epoch == local[2].last_epoch == 3
    assert not given[0].first.bias.requires_grad
    del steps[:]
    given[1].step()
    assert steps == [1]


def test_gradients_and_the_step_may_be_made_by_two_calls(trainer: Any, ruled: Ruled) -> None:
    model, opt, batch = trainer.make()
    expected, local_opt, _ = trainer.make()
    backward, step = ruled("backward", mutates=("model",)), ruled("step", mutates=("opt",))
    for _ in range(2):
        assert backward(model, batch) == trainer.backward(expected, batch)
        equal([one.grad for one in model.parameters()], [one.grad for one in expected.parameters()])
        step(opt)
        trainer.step(local_opt)
        equal(weights(model), weights(expected))
        assert all(one.grad is None for one in model.parameters())


def test_a_group_of_another_arguments_parameters(trainer: Any, ruled: Ruled) -> None:
    opt, head = trainer.make()[1], nn.Linear(2, 2)
    ruled("add_head", mutates=("opt", "head"))(opt, head)
    added = opt.param_groups[1]["params"]
    assert all(one is other for one, other in zip(added, head.parameters(), strict=True))


@pytest.mark.parametrize("mutates", [("t",), "auto"])
def test_tensors_are_changed_in_place(trainer: Any, ruled: Ruled, mutates: Any) -> None:
    makers: list[Callable[[], Any]] = [
        lambda: torch.ones(3),
        lambda: torch.ones(4, 4)[1:, ::2],
        lambda: torch.ones(2, 3, dtype=torch.complex64).t(),
        lambda: torch.ones(()),
        lambda: torch.full((3,), float("nan"), dtype=torch.bfloat16),
        lambda: torch.full((3,), -0.0),
    ]
    for make in makers:
        given, expected = make(), make()
        trainer.ten(expected)
        base, storage, version = given._base, given.data_ptr(), given._version
        ruled("ten", mutates=mutates)(given)
        equal(given, expected)
        assert not torch.signbit(given.real).any()
        assert given.data_ptr() == storage and given._version == version + 1
        if base is not None:
            equal(base, expected._base)
    for name in ("grow", "convert"):
        given, expected = torch.zeros(2), torch.zeros(2)
        getattr(trainer, name)(expected)
        ruled(name, mutates=mutates)(given)
        equal(given, expected)


def test_tensors_of_containers_and_only_those_that_changed(trainer: Any, ruled: Ruled) -> None:
    def make() -> Any:
        return {"w": torch.zeros(2, 2), "n": 1, "view": torch.ones(4)[::2], "same": torch.ones(3)}

    given, expected = make(), make()
    held = dict(given)
    versions = {name: one._version for name, one in held.items() if name != "n"}
    trainer.change(expected)
    ruled("change", mutates=("things",))(given)
    equal(given, expected)
    assert all(given[name] is held[name] for name in versions)
    assert {name for name, version in versions.items() if held[name]._version != version} == {"w", "view"}
    equal(held["view"]._base, expected["view"]._base)


def test_what_goes_by_ref_shares_what_it_shares_here(trainer: Any, ruled: Ruled) -> None:
    """Also if one of them has gone before the other."""
    for first in (0, 1):
        given, expected = trainer.make(), trainer.make()
        argument = ("model", "opt")[first]
        ruled("look", args={"what": "ref"})(given[first])
        epoch = ruled("train_epoch", args=BOTH, mutates=("model", "opt"))
        for _ in range(2):
            assert epoch(*given) == trainer.train_epoch(*expected), argument
        equal(weights(given[0]), weights(expected[0]))
        equal(given[1].state_dict(), expected[1].state_dict())


def test_a_model_by_ref_and_its_optimizer_by_value_are_refused(trainer: Any, ruled: Ruled) -> None:
    model, opt, batch = trainer.make()
    before = weights(model)
    with pytest.raises(CrossingError, match=r"\bopt\b.*\bAdam\b.*\bmodel\b.*`ref`"):
        ruled("train_epoch", args={"model": "ref"})(model, opt, batch)
    with pytest.raises(CrossingError, match=r"\bmodel\b.*\bNet\b.*\bopt\b.*`ref`"):
        ruled("train_epoch", args={"opt": "ref"})(model, batch=batch, opt=opt)
    equal(weights(model), before)
