"""What torch does in its own code, past all kernels, and what a device without memory here needs done in another
way.
"""

import functools
from typing import Any, Final

import torch
from torch import _tensor_str

from remotegpu.offload.torch.codec import FLOOR, Meta
from remotegpu.offload.torch.kernels import Transfers
from remotegpu.offload.torch.storage import Storages, address_of

# Of a larger tensor only the edges are printed, and fetched.
_PRINTED: Final = 16 << 20


def install(device: torch.device, storages: Storages, transfers: Transfers) -> None:
    """For good, once in a process."""
    _print_from_here()
    _make_storages(device, storages, transfers)


def _print_from_here() -> None:
    """Printing formats one element at a time, and would ask for each: have it fetch the tensor once."""
    original = _tensor_str._tensor_str

    @functools.wraps(original)
    def from_here(tensor: Any, indent: int) -> str:
        if address_of(tensor) and tensor.numel() * tensor.dtype.itemsize <= _PRINTED:
            tensor = tensor.detach().cpu()
        return str(original(tensor, indent))

    _tensor_str._tensor_str = from_here


def _make_storages(device: torch.device, storages: Storages, transfers: Transfers) -> None:
    """A storage by itself, of which there is none without an allocator: torch would call one at address 0."""
    kind = torch.UntypedStorage
    make, clone = kind.__new__, kind.clone

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        wanted = kwargs.get("device")
        if wanted is None or torch.device(wanted).type != device.type:
            return make(cls, *args, **kwargs)
        content = args[0] if args else 0
        if isinstance(content, int):
            return transfers.allocate(_bytes(content)).untyped_storage()
        return transfers.upload(torch.tensor(list(content), dtype=torch.uint8)).untyped_storage()

    @functools.wraps(clone)
    def cloned(self: Any) -> Any:
        if self.data_ptr() < FLOOR:
            return clone(self)
        return storages.tensor(self, _bytes(self.nbytes())).clone().untyped_storage()

    kind.__new__, kind.clone = new, cloned


def _bytes(count: int) -> Meta:
    return Meta(torch.uint8, (count,), (1,))
