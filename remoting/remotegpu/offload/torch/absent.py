"""Operations that the remote device lacks: a sentence, where torch would list all its back ends."""

from collections.abc import Callable
from typing import Any, Final, NoReturn

import torch

from remotegpu.offload.torch.cuda import refused

_KEYS: Final = {
    "PrivateUse1": "the device has no kernel for it",
    "SparsePrivateUse1": "its tensors are dense; keep sparse ones on the CPU, or make them dense by .to_dense()",
    "SparseCsrPrivateUse1": "its tensors are dense; keep sparse ones on the CPU, or make them dense by .to_dense()",
    "QuantizedPrivateUse1": "it has no quantized tensors; keep them on the CPU",
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
        raise NotImplementedError(refused.sentence(operation.name(), reason))

    return refuse
