"""Recognises operations on tensors that are not dense (sparse, quantized, nested, oneDNN), with reasons for errors.

A remote tensor is always dense: one range of memory with sizes and strides.
"""

import re
from typing import Any, Final

import torch

SPARSE: Final = "its tensors are dense; keep sparse ones on the CPU, or make them dense by .to_dense()"
QUANTIZED: Final = "it has no quantized tensors; keep them on the CPU"
NESTED: Final = (
    "it has no nested tensors of torch.strided; make them with layout=torch.jagged, or pad them on the CPU by "
    ".to_padded_tensor()"
)
ONEDNN: Final = "its tensors are dense; .to_mkldnn() is for the CPU alone"

# Fake quantization, and tensors packed for the sparse matrix units of a CUDA device, are dense tensors.
_WORDS: Final = re.compile(r"(?<!fake_)(quantize)|(?<!_cslt_)(sparse)(?!_semi_structured)|(nested)|(mkldnn)")
_REASONS: Final = (QUANTIZED, SPARSE, NESTED, ONEDNN)

DENSE: Final = frozenset(
    (
        "_nested_compute_contiguous_strides_offsets",
        "_nested_tensor_from_mask_left_aligned",
        "_validate_compressed_sparse_indices",
        "sparse_dim",
    )
)
"""Operations that are named for other tensors, but take and return dense ones and numbers."""


def reason(operation: str) -> str | None:
    """Returns the reason why the device does not support an operation, as part of a sentence; None if it is for dense
    tensors.

    Schemas do not tell whether a result is dense, so the name decides (`aten::quantize_per_tensor.tensors`).
    """
    own = operation.removeprefix("aten::").partition(".")[0]
    found = None if own in DENSE else _WORDS.search(own)
    return None if found is None or found.lastindex is None else _REASONS[found.lastindex - 1]


def origins(operation: str) -> list[str]:
    """Returns the operations from which torch generated this one: `a` for `a.out` and `a_copy`, and `a_` for `a`.

    A generated operation calls the original, and copies its results.
    """
    name, dot, overload = operation.partition(".")
    if overload == "out" or overload.endswith("_out"):
        base = overload.removesuffix("out").removesuffix("_")
        return [f"{name}.{base}" if base else name]
    return [name.removesuffix("_copy") + dot + overload] * name.endswith("_copy") + [f"{name}_{dot}{overload}"]


def kind(tensor: Any) -> str | None:
    """Returns the kind of a tensor that is not dense: `quantized`, `nested`, or a layout such as `sparse_coo`.

    None for a dense tensor.
    """
    if tensor.is_quantized:
        return "quantized"
    if tensor.is_nested:
        return "nested"
    return None if tensor.layout is torch.strided else str(tensor.layout).removeprefix("torch.").removeprefix("_")
