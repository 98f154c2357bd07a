"""Random numbers of the remote device. The acceptor's generators make them, so a seed gives other numbers than on the
CPU.

Seeds are sent in order with the operations; states are fetched from the acceptor.
"""

import itertools
import os
import weakref
from collections.abc import Iterable
from typing import Any, Final

import torch

from remotegpu_offload.torch import shown
from remotegpu_offload.torch.generators import DEFAULT, MARK, made
from remotegpu_offload.torch.script import device_names
from remotegpu_offload.torch.shown import NAME
from remotegpu_offload.torch.stream import link

DEFAULT_SEED: Final = 67280421310721
"""torch's own seed, of every generator that was not seeded."""

_Local: Any = torch._C.Generator
_ids = itertools.count(1)
_default_seed: int | None = None


class _GeneratorType(type(_Local)):  # type: ignore[misc] # a metaclass that is only known at run time
    """The metaclass of `torch.Generator`: makes a remote generator for "cuda", and torch's own for any other device.

    Both are instances of `torch.Generator`.
    """

    def __call__(cls, device: Any = "cpu") -> Any:
        true = device_names.to_remote(device)
        if torch.device(true).type != NAME:
            return _Local(device)
        return super().__call__()

    def __instancecheck__(cls, value: Any) -> bool:
        return type.__instancecheck__(cls, value) or isinstance(value, _Local)


class RemoteGenerator(_Local, metaclass=_GeneratorType):  # type: ignore[misc]
    """A random number generator of the acceptor's device."""

    def __new__(cls) -> "RemoteGenerator":
        return super().__new__(cls, "cpu")  # type: ignore[no-any-return]

    def __init__(self) -> None:
        self.id = next(_ids)
        _Local.manual_seed(self, MARK | self.id)
        made[self.id] = self
        self._seed = 0
        self.manual_seed(DEFAULT_SEED)
        weakref.finalize(self, link.forget, "generators", self.id)

    @property
    def device(self) -> Any:
        return torch.device(shown.current(), 0)

    def manual_seed(self, seed: int) -> "RemoteGenerator":
        self._seed = _unsigned(seed)
        link.tell({"op": "seed", "generator": self.id, "seed": self._seed})
        return self

    def seed(self) -> int:
        """Seeds the generator with a number from the operating system, and returns that number."""
        self.manual_seed(int.from_bytes(os.urandom(8), "little"))
        return self._seed

    def initial_seed(self) -> int:
        return self._seed

    def get_state(self) -> Any:
        return _state(self.id)

    def set_state(self, state: Any) -> "RemoteGenerator":
        _set_state(self.id, state)
        return self

    def clone_state(self) -> "RemoteGenerator":
        made: RemoteGenerator = torch.Generator(torch.device(NAME, 0))
        made._seed = self._seed
        return made.set_state(self.get_state())

    def get_offset(self) -> int:
        raise RuntimeError("Generator.get_offset: back ends differ in it. Use get_state")

    set_offset = graphsafe_set_state = graphsafe_get_state = get_offset


def live() -> dict[int, RemoteGenerator]:
    """Returns the generators that the program holds, by id."""
    return dict(made)


def manual_seed(seed: int) -> None:
    """Seeds the device's generator, in order with the operations."""
    global _default_seed  # noqa: PLW0603 - there is one device
    _default_seed = _unsigned(seed)
    link.later({"op": "seed", "generator": DEFAULT, "seed": _default_seed})


def seed() -> int:
    """Seeds the device's generator with a number from the operating system, and returns that number."""
    manual_seed(int.from_bytes(os.urandom(8), "little"))
    assert _default_seed is not None
    return _default_seed


def initial_seed() -> int:
    if _default_seed is None:
        return int(link.ask({"op": "initial_seed"}).header["seed"])
    return _default_seed


def get_rng_state(device: Any = None) -> Any:
    """Returns the state of the device's generator as a tensor of bytes on the CPU. The format is that of the acceptor's
    back end."""
    device_names.to_remote(device)
    return _state(DEFAULT)


def set_rng_state(new_state: Any, device: Any = None) -> None:
    device_names.to_remote(device)
    _set_state(DEFAULT, new_state)


def get_rng_state_all() -> list[Any]:
    return [get_rng_state()]


def set_rng_state_all(new_states: Iterable[Any]) -> None:
    for state in new_states:
        set_rng_state(state)


def _state(generator: int) -> Any:
    reply = link.ask({"op": "rng_get", "generator": generator})
    return torch.frombuffer(bytearray(reply.buffers[0]), dtype=torch.uint8)


def _set_state(generator: int, state: Any) -> None:
    link.ask({"op": "rng_set", "generator": generator}, (state.cpu().contiguous().numpy().tobytes(),))


def _unsigned(seed: int) -> int:
    return int(seed) & (1 << 64) - 1


class _Default:
    """The object `torch.cuda.default_generators[0]`."""

    id = DEFAULT
    manual_seed = staticmethod(manual_seed)
    seed = staticmethod(seed)
    initial_seed = staticmethod(initial_seed)
    get_state = staticmethod(get_rng_state)
    set_state = staticmethod(set_rng_state)

    @property
    def device(self) -> Any:
        return torch.device(shown.current(), 0)


def answers(_name: str) -> dict[str, Any]:
    """Returns the replacements for functions of torch.cuda and similar modules."""
    return {
        "default_generators": (_Default(),),
        "get_rng_state": get_rng_state,
        "get_rng_state_all": get_rng_state_all,
        "initial_seed": initial_seed,
        "manual_seed": manual_seed,
        "manual_seed_all": manual_seed,
        "seed": seed,
        "seed_all": seed,
        "set_rng_state": set_rng_state,
        "set_rng_state_all": set_rng_state_all,
    }


def install() -> None:
    """Makes `torch.Generator("cuda")` a remote generator, and lets only the replaced functions seed the device."""
    torch.Generator = RemoteGenerator
    module = getattr(torch, NAME)
    module.manual_seed_all = lambda _seed: None
    module._is_in_bad_fork = link.forked
