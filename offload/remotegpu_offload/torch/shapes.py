"""Infers the results of an operation with tensors without memory (torch's `meta` device).

The caller caches the results.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from remotegpu_offload.torch.codec import Meta, walk
from remotegpu_offload.torch.storage import address_of, meta_of

META: Final = torch.device("meta")

LEARNT: Final = frozenset(
    f"aten::{name}"
    for name in (
        # Their results for the backward pass differ between devices in size or type.
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit.no_stats",
        "_batch_norm_with_update",
        "native_layer_norm",
        "native_group_norm",
        "_embedding_bag",
        "_embedding_bag_forward_only",
        # Without weights it returns nothing instead of them.
        "_native_multi_head_attention",
    )
)
"""Operations whose results the acceptor describes the first time; for the same shapes and types they are the same
from then on.
"""

SYNCHRONOUS: Final = LEARNT | frozenset(
    f"aten::{name}"
    for name in (
        # Checks, which return nothing and raise errors.
        "_linalg_check_errors",
        "_assert_scalar",
        # Sizes depend on lengths that are data, or the meta kernels compute wrong sizes.
        "_ctc_loss",
        "_ctc_loss.Tensor",
        "linalg_lstsq",
        "linalg_lstsq.out",
        # Returns nothing instead of a gradient if no gradient was passed.
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    )
)
"""Operations that wait for the acceptor, although torch would say what they return."""


class Unknown(Exception):  # noqa: N818 - an answer and not an error
    """Only the acceptor can know the results of the operation."""


def infer(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Returns the operation's results for these arguments, with each tensor as a tensor on `meta`.

    Raises Unknown if torch cannot tell the results without the data. Also raises it if torch refuses the arguments:
    then the acceptor reports torch's own error.
    """
    if operation.name() in SYNCHRONOUS:
        raise Unknown
    try:
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunctionSubclass():
            return operation(*walk(list(args), ghost), **walk(dict(kwargs), ghost))
    except Exception as error:
        raise Unknown from error


def ghost(value: Any) -> Any:
    """Returns the `meta` counterpart of a remote tensor or of a device; any other value unchanged."""
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
