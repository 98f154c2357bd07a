"""Patches of torch for a device without local memory: code of torch that bypasses the kernels."""

import functools
import types
from typing import Any, Final, NoReturn

import torch
from torch import _tensor_str
from torch.nn.modules import transformer

from remotegpu_offload.torch import layouts
from remotegpu_offload.torch.codec import FLOOR, Meta
from remotegpu_offload.torch.kernels import Transfers
from remotegpu_offload.torch.storage import Storages, address_of

# Up to this size, a tensor is fetched as a whole. torch prints, and fetches, only the edges of a larger one.
_PRINTED: Final = 16 << 20

_library: Final = torch.library.Library("aten", "IMPL")


def install(device: torch.device, storages: Storages, transfers: Transfers) -> None:
    """Installs the patches for the lifetime of the process. Call it once."""
    _print_fetched()
    _pad_with_masks()
    _make_storages(device, storages, transfers)


def _print_fetched() -> None:
    """Fetches a tensor once before it is printed: torch formats the elements one by one, and would fetch each."""
    original = _tensor_str._tensor_str

    @functools.wraps(original)
    def fetched(tensor: Any, indent: int) -> str:
        if address_of(tensor) and tensor.numel() * tensor.dtype.itemsize <= _PRINTED:
            tensor = tensor.detach().cpu()
        return str(original(tensor, indent))

    _tensor_str._tensor_str = fetched


class _NestedError(NotImplementedError):
    """Raised before torch makes a nested tensor from a padded one."""


def _pad_with_masks() -> None:
    """Lets a transformer's encoder handle padding by the mask.

    In inference, torch itself uses nested tensors to skip the padding, and returns zeros there. The result is the same.
    """
    original = transformer.TransformerEncoder.forward

    def nested(tensor: Any, mask: Any, mask_check: bool = True) -> NoReturn:  # noqa: ARG001 - torch's signature
        from remotegpu_offload.torch.cuda import refused  # noqa: PLC0415 - that module imports this one

        raise _NestedError(refused.sentence("aten::_nested_tensor_from_mask", layouts.NESTED))

    def forward(
        self: Any, src: Any, mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool | None = None
    ) -> Any:
        try:
            return original(self, src, mask, src_key_padding_mask, is_causal)
        except _NestedError:
            padding = src_key_padding_mask if src_key_padding_mask.dtype is torch.bool else src_key_padding_mask != 0
        # torch has checked before that there is no other mask, and that all layers are its own.
        for layer in self.layers:
            src = layer(src, src_key_padding_mask=padding)
        src = src.masked_fill(padding.unsqueeze(-1), 0)
        return src if self.norm is None else self.norm(src)

    _library.impl("_nested_tensor_from_mask", nested, "PrivateUse1")
    # TorchScript compiles the source of the original, with the global names of this function.
    known = vars(transformer) | globals()
    made = types.FunctionType(forward.__code__, known, "forward", forward.__defaults__, forward.__closure__)
    transformer.TransformerEncoder.forward = functools.update_wrapper(made, original)


def _make_storages(device: torch.device, storages: Storages, transfers: Transfers) -> None:
    """Replaces `UntypedStorage.__new__` and `clone` so that they can create storages on the remote device.

    The originals use the device's allocator. The remote device has none, so they would call a null pointer.
    """
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
