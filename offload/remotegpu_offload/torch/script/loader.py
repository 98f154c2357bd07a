"""DataLoader and processes: pinned memory, and tensors that are sent to other processes."""

import functools
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from remotegpu_offload.torch.cuda import refused
from remotegpu_offload.torch.script import device_names

_pinned: Any = WeakIdKeyDictionary()


def install() -> None:
    """Replaces the pinned memory and `reduce_tensor` functions of torch until the process ends.

    `names.arm` calls it once.
    """
    pinned = torch.Tensor.is_pinned

    @functools.wraps(torch.Tensor.pin_memory)
    def pin_memory(self: Any, device: Any = None) -> Any:
        # A copy would be useless: the acceptor pins the memory that its device reads.
        device_names.to_remote(device)
        if device_names.is_remote(self):
            raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")
        _pinned[self] = True
        return self

    @functools.wraps(pinned)
    def is_pinned(self: Any, device: Any = None) -> bool:
        device_names.to_remote(device)
        return self in _pinned

    torch.Tensor.pin_memory, torch.Tensor.is_pinned = pin_memory, is_pinned
    storage = torch.UntypedStorage
    storage.pin_memory = lambda self, device="cuda": self  # noqa: ARG005 - torch's signature
    storage.is_pinned = lambda self, device="cuda": False  # noqa: ARG005
    reduce = torch.multiprocessing.reductions.reduce_tensor

    def reduce_tensor(tensor: Any) -> Any:
        if device_names.is_remote(tensor):
            reason = "its memory is the acceptor's, and this process alone is connected; send .cpu()"
            raise RuntimeError(refused.sentence("a tensor sent to another process", reason))
        return reduce(tensor)

    for kind in (torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, reduce_tensor)
