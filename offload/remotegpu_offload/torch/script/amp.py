"""Automatic mixed precision on the remote device: `autocast("cuda")` with the same lists as CUDA's own autocast.

Without kernels for the autocast key of PrivateUse1, every operation under autocast fails. Therefore operations on no
list fall through. The lists are those of torch's page "Autocast Op Reference" for CUDA. A test compares them with
torch's registrations for CUDA.
"""

import functools
from collections.abc import Callable
from typing import Any, Final

import torch

from remotegpu_offload.torch import shown
from remotegpu_offload.torch.script import device_names
from remotegpu_offload.torch.shown import NAME

LOWER: Final = tuple(
    """
    _convolution _convolution.deprecated convolution conv1d conv2d conv3d conv_tbc conv_transpose1d
    conv_transpose2d.input conv_transpose3d.input prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear
    addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell
    rnn_tanh_cell rnn_relu_cell scaled_dot_product_attention _scaled_dot_product_flash_attention
    """.split()  # noqa: SIM905 - a hundred names
)
"""These run in the fast type."""

FLOAT32: Final = tuple(
    """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
    pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm group_norm rms_norm frobenius_norm.dim
    nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d
    hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss
    multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits
    dist pdist cdist renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d
    _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d
    _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa linalg_matrix_sqrth
    """.split()  # noqa: SIM905 - a hundred names
)
"""These run in float32."""

FLOAT32_RESULT: Final = tuple(
    """
    prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
    linalg_matrix_norm.str_ord sum sum.dim_IntList
    """.split()  # noqa: SIM905 - a hundred names
)
"""These get dtype=float32 unless the program names a type."""

FLOAT32_NORM: Final = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}
"""These become the overload that takes a type."""

WIDEST: Final = (
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "cross",
    "dot",
    "vdot",
    "grid_sampler",
    "index_put",
    "tensordot",
    "scatter_add",
)
"""These run in the widest type among their arguments."""

_UNSAFE: Final = "binary_cross_entropy"

_libraries: list[Any] = []
_casts: dict[int, tuple[Any, Any]] = {}


def install() -> None:
    """Registers the lists, and makes every form of `autocast("cuda")` refer to the remote device, permanently."""
    if _libraries:
        return
    fallback = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
    fallback.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    library = torch.library.Library("aten", "IMPL", "AutocastPrivateUse1")
    _libraries.extend((fallback, library))
    for listed, policy in ((LOWER, _lower), (FLOAT32, _float32), (FLOAT32_RESULT, _float32_result), (WIDEST, _widest)):
        for name in listed:
            operator = _operator(name)
            if operator is not None:
                library.impl(name, policy(operator), "AutocastPrivateUse1")
    for name, other in FLOAT32_NORM.items():
        library.impl(name, _float32_norm(_operator(name), _operator(other)), "AutocastPrivateUse1")
    library.impl(_UNSAFE, _unsafe, "AutocastPrivateUse1")
    _rename()


def _operator(name: str) -> Any:
    """Returns torch's operator of this name; None if this torch has none."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)


_without_autocast = functools.partial(
    torch._C._ExcludeDispatchKeyGuard, torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
)


def _eligible(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.dtype != torch.float64
        and device_names.is_remote(value)
    )


def _cast(value: Any, dtype: Any) -> Any:
    """Returns the value with every eligible tensor converted to this dtype.

    Like torch, caches the conversions of parameters until autocast ends.
    """
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(item, dtype) for item in value)
    if not _eligible(value) or value.dtype == dtype:
        return value
    keep = (
        value.dtype == torch.float32
        and dtype == torch.get_autocast_dtype(NAME)
        and value.requires_grad
        and value.is_leaf
        and not value._is_view()
        and torch.is_autocast_cache_enabled()
    )
    if not keep:
        return value.to(dtype)
    found = _casts.get(id(value))
    if found is None:
        found = _casts[id(value)] = (value, value.to(dtype))
    return found[1]


def _lower(operator: Any) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype(NAME)
        with _without_autocast():
            return operator(*_cast(args, dtype), **{name: _cast(value, dtype) for name, value in kwargs.items()})

    return call


def _float32(operator: Any) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with _without_autocast():
            return operator(
                *_cast(args, torch.float32), **{name: _cast(value, torch.float32) for name, value in kwargs.items()}
            )

    return call


def _float32_result(operator: Any) -> Callable[..., Any]:
    place = [argument.name for argument in operator._schema.arguments].index("dtype")

    def call(*args: Any, **kwargs: Any) -> Any:
        named = kwargs.get("dtype") is not None or (len(args) > place and args[place] is not None)
        with _without_autocast():
            if named or not _eligible(args[0]):
                return operator(*args, **kwargs)
            if len(args) > place:
                return operator(*args[:place], torch.float32, *args[place + 1 :], **kwargs)
            return operator(*args, **{**kwargs, "dtype": torch.float32})

    return call


def _float32_norm(operator: Any, typed: Any) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with _without_autocast():
            if not _eligible(args[0]):
                return operator(*args, **kwargs)
            return typed(*args, **kwargs, dtype=torch.float32)

    return call


def _widest(operator: Any) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        flat = [
            item
            for value in (*args, *kwargs.values())
            for item in (value if isinstance(value, (list, tuple)) else (value,))
        ]
        wide = any(_eligible(value) and value.dtype == torch.float32 for value in flat)
        dtype = torch.float32 if wide else torch.get_autocast_dtype(NAME)
        with _without_autocast():
            return operator(*_cast(args, dtype), **{name: _cast(value, dtype) for name, value in kwargs.items()})

    return call


def _unsafe(*_args: Any, **_kwargs: Any) -> Any:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast: a float16 sigmoid "
        "overflows them. Use binary_cross_entropy_with_logits or BCEWithLogitsLoss, or compute the loss in "
        "autocast(enabled=False) from .float()"
    )


def _true(device_type: Any) -> Any:
    return NAME if device_type in shown.names() else device_type


def _rename() -> None:
    """Translates the script's device name in all functions that take one, `autocast` first."""
    autocast = torch.amp.autocast_mode.autocast
    enter = autocast.__init__

    @functools.wraps(enter)
    def init(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        enter(self, _true(device_type), *args, **kwargs)

    autocast.__init__ = init
    available = torch.amp.autocast_mode.is_autocast_available
    for place in (torch.amp, torch.amp.autocast_mode):
        place.is_autocast_available = lambda device_type: available(_true(device_type))
    for name in ("get_autocast_dtype", "set_autocast_dtype"):
        setattr(torch, name, _named_first(getattr(torch, name)))
    # Without an argument, these two functions refer to CUDA.
    enabled, set_enabled = torch.is_autocast_enabled, torch.set_autocast_enabled
    torch.is_autocast_enabled = lambda device_type="cuda": enabled(_true(device_type))

    def set_autocast_enabled(*args: Any) -> None:
        set_enabled(_true(args[0]) if len(args) > 1 else _true("cuda"), args[-1])

    torch.set_autocast_enabled = set_autocast_enabled
    torch.get_autocast_gpu_dtype = lambda: torch.get_autocast_dtype("cuda")
    torch.set_autocast_gpu_dtype = lambda dtype: torch.set_autocast_dtype("cuda", dtype)
    clear = torch.clear_autocast_cache

    def clear_autocast_cache() -> None:
        _casts.clear()
        clear()

    torch.clear_autocast_cache = clear_autocast_cache


def _named_first(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(device_type: Any, *args: Any) -> Any:
        return function(_true(device_type), *args)

    return call
