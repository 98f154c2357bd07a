"""`torch.cuda.FloatTensor` and similar names: constructors and type names from before `dtype` and `device`."""

from collections.abc import Iterable
from typing import Any, Final

import torch

from remotegpu_offload.torch.script import device_names
from remotegpu_offload.torch.shown import NAME

_TYPES: Final = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "ShortTensor": torch.int16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "BoolTensor": torch.bool,
}


class _LegacyType(type):
    """The metaclass of these names. `.type()` and `set_default_tensor_type` read `remote_dtype`."""

    remote_dtype: Any

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.dtype == cls.remote_dtype and device_names.is_remote(value)

    def __call__(cls, *values: Any, **_device: Any) -> Any:
        device = torch.device(NAME, 0)
        if len(values) == 1 and not isinstance(values[0], (int, torch.Size)):
            return torch.as_tensor(values[0], dtype=cls.remote_dtype).to(device)
        size = values[0] if values and isinstance(values[0], torch.Size) else values
        return torch.empty(tuple(size) or (0,), dtype=cls.remote_dtype, device=device)

    @property
    def dtype(cls) -> Any:
        return cls.remote_dtype


def install(names: Iterable[str]) -> None:
    """Installs the constructors in the modules of these names."""
    for name in names:
        module = getattr(torch, name)
        for type_name, dtype in _TYPES.items():
            made = _LegacyType(
                type_name, (), {"__module__": module.__name__, "is_cuda": name == "cuda", "is_sparse": False}
            )
            made.remote_dtype = dtype
            setattr(module, type_name, made)
