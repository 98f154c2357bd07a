"""Random numbers of the device: made by the acceptor, seeded from here (trap 15)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from offload_armed import trips
from torch import nn
from torch.utils.checkpoint import checkpoint

from remotegpu_offload.client.session import Session

pytestmark = [pytest.mark.frameworks, pytest.mark.usefixtures("armed")]


def draw(**options: Any) -> list[float]:
    found: list[float] = torch.rand(4, device="cuda", **options).tolist()
    return found


def test_seeds_are_forwarded_in_order() -> None:
    torch.manual_seed(5)
    first, second = draw(), draw()
    assert first != second
    torch.manual_seed(5)
    assert [draw(), draw()] == [first, second]
    torch.cuda.manual_seed(5)
    assert draw() == first
    torch.cuda.manual_seed_all(5)
    assert draw() == first
    torch.xpu.manual_seed(5)
    assert draw() == first
    assert torch.cuda.initial_seed() == 5
    torch.cuda.seed()
    assert draw() != first
    torch.manual_seed(-1)
    assert torch.cuda.initial_seed() == 2**64 - 1


def test_the_hosts_generator_is_another_one() -> None:
    torch.manual_seed(5)
    draw()
    here = torch.rand(4)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(4), here)


def test_states_are_fetched_and_set_again(armed: Session) -> None:
    torch.manual_seed(1)
    draw()
    before = trips(armed)
    state = torch.cuda.get_rng_state()
    assert trips(armed) == before + 1
    assert state.dtype == torch.uint8 and state.device == torch.device("cpu")
    want = draw()
    torch.cuda.set_rng_state(state)
    assert draw() == want
    torch.cuda.set_rng_state_all(torch.cuda.get_rng_state_all())
    with torch.random.fork_rng(devices=[0]):
        torch.manual_seed(99)
        draw()
    torch.cuda.set_rng_state(state, "cuda:0")
    assert draw() == want
    with pytest.raises(RuntimeError):
        torch.cuda.set_rng_state(torch.zeros(3, dtype=torch.uint8))


def test_generators_of_their_own() -> None:
    one, two = torch.Generator("cuda"), torch.Generator(device=torch.device("cuda:0"))
    assert one.device == torch.device("cuda:0") and one.initial_seed() == torch.Generator().initial_seed()
    assert one.manual_seed(7) is one and one.initial_seed() == 7
    two.manual_seed(7)
    torch.manual_seed(0)
    first = draw(generator=one)
    assert draw(generator=two) == first
    assert draw(generator=one) != first
    one.set_state(two.get_state())
    assert draw(generator=one) == draw(generator=two)
    copy = one.clone_state()
    assert draw(generator=copy) == draw(generator=one)
    # Others do not notice.
    after = draw()
    torch.manual_seed(0)
    assert draw() == after
    for function in (torch.randn, torch.rand):
        one.manual_seed(3)
        made = function(3, device="cuda", generator=one).tolist()
        assert function(3, device="cuda", generator=one.manual_seed(3)).tolist() == made
    calls: list[Callable[[], Any]] = [
        lambda: torch.randint(9, (5,), device="cuda", generator=one),
        lambda: torch.randperm(9, device="cuda", generator=one),
        lambda: torch.zeros(5, device="cuda").normal_(generator=one),
        lambda: torch.full((5,), 0.5, device="cuda").bernoulli(generator=one),
        lambda: torch.multinomial(torch.ones(9, device="cuda"), 3, generator=one),
    ]
    for call in calls:
        one.manual_seed(11)
        want = call().tolist()
        one.manual_seed(11)
        assert call().tolist() == want
    assert isinstance(one, torch.Generator) and isinstance(torch.default_generator, torch.Generator)
    assert type(torch.Generator("cpu")).__name__ == "Generator"
    assert torch.cuda.default_generators[0].device == torch.device("cuda:0")


def test_normal_in_each_of_its_forms() -> None:
    def draws() -> list[Any]:
        torch.manual_seed(3)
        ones, generator = torch.ones(3, device="cuda"), torch.Generator("cuda").manual_seed(1)
        return [
            torch.normal(0.0, 1.0, (3,), device="cuda"),
            torch.normal(mean=0.0, std=1.0, size=(3,), device=torch.device("cuda:0"), generator=generator),
            torch.normal(ones, 2.0),
            torch.normal(1.0, ones),
            torch.normal(ones, ones),
        ]

    first, second = draws(), draws()
    assert all(str(made.device) == "cuda:0" and made.shape == (3,) for made in first)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert torch.normal(0.0, 1.0, (3,)).device.type == "cpu"


def test_a_generator_of_another_device_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"'cuda'.*'cpu'"):
        draw(generator=torch.Generator())


def test_dropout_is_repeated_with_its_seed_and_in_checkpoints(armed: Session) -> None:
    module = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5)).cuda()
    x = torch.ones(2, 16, device="cuda")
    torch.manual_seed(4)
    want = module(x).tolist()
    torch.manual_seed(4)
    assert module(x).tolist() == want
    gradients = []
    for run in (module, lambda y: checkpoint(module, y, use_reentrant=False)):
        module.zero_grad()
        torch.manual_seed(4)
        run(x).sum().backward()
        gradients.append(module[0].weight.grad.tolist())
    assert gradients[0] == gradients[1]


def test_seeding_asks_nobody(armed: Session) -> None:
    before = trips(armed)
    for seed in range(20):
        torch.manual_seed(seed)
    assert trips(armed) == before
