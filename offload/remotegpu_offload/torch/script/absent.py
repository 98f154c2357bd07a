"""Errors for operations that the remote device lacks: a sentence with a remedy instead of torch's list of back ends."""

from collections.abc import Callable
from typing import Any, Final, NoReturn

import torch

from remotegpu_offload.torch import layouts
from remotegpu_offload.torch.cuda import refused

_KEYS: Final = {
    "PrivateUse1": "the device has no kernel for it",
    "SparsePrivateUse1": layouts.SPARSE,
    "SparseCsrPrivateUse1": layouts.SPARSE,
    "QuantizedPrivateUse1": layouts.QUANTIZED,
    "NestedTensorPrivateUse1": layouts.NESTED,
}

_libraries: list[Any] = []


def install() -> None:
    """Installs the errors for the lifetime of the process.

    They are fallbacks: an operation with a kernel, or one that is composed of others, never reaches them.
    """
    library = torch.library.Library("_", "IMPL")
    for key, reason in _KEYS.items():
        library.fallback(_refusal(reason), key)
    _libraries.append(library)


def _refusal(reason: str) -> Callable[..., NoReturn]:
    def refuse(operation: Any, *_arguments: Any, **_keywords: Any) -> NoReturn:
        name = operation.name()
        raise NotImplementedError(refused.sentence(name, layouts.reason(name) or reason))

    return refuse
