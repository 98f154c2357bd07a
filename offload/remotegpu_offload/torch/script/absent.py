"""Operations that the remote device lacks: a sentence, where torch would list all its back ends."""

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
    """Once in a process, for good. It is asked last: what has a kernel, or is composed of others, never comes here."""
    library = torch.library.Library("_", "IMPL")
    for key, reason in _KEYS.items():
        library.fallback(_refusal(reason), key)
    _libraries.append(library)


def _refusal(reason: str) -> Callable[..., NoReturn]:
    def refuse(operation: Any, *_arguments: Any, **_keywords: Any) -> NoReturn:
        name = operation.name()
        raise NotImplementedError(refused.sentence(name, layouts.reason(name) or reason))

    return refuse
