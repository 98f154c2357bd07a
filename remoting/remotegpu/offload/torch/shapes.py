"""What an operation will return, found out on tensors without memory (torch's `meta` device). The caller keeps
what it learns.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from remotegpu.offload.torch.codec import Meta, walk
from remotegpu.offload.torch.storage import address_of, meta_of

META: Final = torch.device("meta")

SYNCHRONOUS: Final = frozenset(
    f"aten::{name}"
    for name in (
        # Checks: they return nothing and raise.
        "_linalg_check_errors",
        "_assert_scalar",
        # Their meta kernels promise other shapes than the kernels give.
        "_ctc_loss",
        "_ctc_loss.Tensor",
        "_embedding_bag",
        "_embedding_bag_forward_only",
        "linalg_lstsq",
        "linalg_lstsq.out",
    )
)
"""Operations that wait for the acceptor, although torch would say what they return."""


class Unknown(Exception):  # noqa: N818 - it is an answer, not a fault
    """Only the acceptor can know what the operation returns."""


def infer(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What the operation returns for these arguments: its results with each tensor as a tensor on `meta`.

    Raises Unknown where torch cannot tell without the data, and also where it refuses the arguments: then the
    acceptor refuses them in its own words.
    """
    if operation.name() in SYNCHRONOUS:
        raise Unknown
    try:
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunctionSubclass():
            return operation(*walk(list(args), ghost), **walk(dict(kwargs), ghost))
    except Exception as error:
        raise Unknown from error


def ghost(value: Any) -> Any:
    """A remote tensor's likeness on `meta`; anything else as it is."""
    if isinstance(value, torch.Tensor):
        return _ghost(meta_of(value)) if address_of(value) else value
    return META if isinstance(value, torch.device) else value


def _ghost(meta: Meta) -> Any:
    made = torch.empty_strided(meta.size, meta.stride, dtype=meta.dtype, device=META)
    if meta.conj:
        torch._C._set_conj(made, True)
    if meta.neg:
        torch._C._set_neg(made, True)
    return made
