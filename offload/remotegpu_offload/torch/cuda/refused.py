"""Functions that the remote device does not support. Each raises an error with a remedy."""

import functools
from typing import Any, Final, NoReturn

WHOLE: Final = (
    "Run the whole program at the acceptor (`remotegpu offload run --split app SCRIPT`), or the function that needs it "
    "with a rule `function: module.name`"
)

HARMLESS: Final = frozenset(
    (
        "AcceleratorError",
        "Any",
        "Callable",
        "CudaError",
        "DeferredCudaCallError",
        "Device",
        "Enum",
        "NewType",
        "Optional",
        "OutOfMemoryError",
        "auto",
        "cache",
        "cast",
        "check_error",
        "classproperty",
        "cudaStatus",
        "get_sync_debug_mode",
        "has_half",
        "has_magma",
        "lru_cache",
    )
)
"""Names in torch.cuda that need no device."""

_REASONS: Final = {
    "CUDAGraph": "a graph is captured from the stream of a device in this machine",
    "graph": "a graph is captured from the stream of a device in this machine",
    "make_graphed_callables": "a graph is captured from the stream of a device in this machine",
    "XPUGraph": "a graph is captured from the stream of a device in this machine",
    "cudart": "the CUDA runtime of this machine has no device",
    "ExternalStream": "a stream of another library has no meaning in another machine",
    "get_stream_from_external": "a stream of another library has no meaning in another machine",
    "MemPool": "memory is allocated by the acceptor",
    "CUDAPluggableAllocator": "memory is allocated by the acceptor",
    "change_current_allocator": "memory is allocated by the acceptor",
    "caching_allocator_alloc": "memory is allocated by the acceptor",
    "memory_snapshot": "allocations are the acceptor's",
}


def sentence(name: str, reason: str = "") -> str:
    """Returns the sentence of the error for users."""
    why = reason or _REASONS.get(name.rpartition(".")[2], "it reaches past torch to a device in this machine")
    return f"{name}: not on a remote device, {why}. {WHOLE}"


class _RefusedType(type):
    """The metaclass of refused classes: `isinstance` returns False, and the constructor raises RuntimeError."""

    refused: str

    def __call__(cls, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise RuntimeError(cls.refused)


def refusal(name: str, original: Any) -> Any:
    """Returns a replacement for a function or class that raises RuntimeError when it is used."""
    if isinstance(original, type):
        made = _RefusedType(
            name.rpartition(".")[2], (), {"__doc__": original.__doc__, "__module__": name.rpartition(".")[0]}
        )
        made.refused = sentence(name)
        return made

    @functools.wraps(original)
    def refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise RuntimeError(sentence(name))

    return refuse
