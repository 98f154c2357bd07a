"""The properties and memory figures of the acceptor's device."""

import weakref
from dataclasses import dataclass, field, fields
from typing import Any, Final

import torch

from remotegpu_offload.torch import shown
from remotegpu_offload.torch.script import device_names
from remotegpu_offload.torch.shown import NAME
from remotegpu_offload.torch.stream import link

_PEAKS: Final = ("allocated", "reserved")


@dataclass(frozen=True)
class DeviceProperties:
    """The properties that torch reports of a CUDA device.

    Capability (0, 0) means that the device is not a CUDA device.
    """

    name: str = ""
    major: int = 0
    minor: int = 0
    total_memory: int = 0
    multi_processor_count: int = 0
    warp_size: int = 32
    max_threads_per_multi_processor: int = 0
    max_threads_per_block: int = 1024
    regs_per_multiprocessor: int = 0
    shared_memory_per_block: int = 49152
    shared_memory_per_block_optin: int = 49152
    shared_memory_per_multiprocessor: int = 0
    L2_cache_size: int = 0
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    gcnArchName: str = ""  # noqa: N815 - torch's name
    uuid: str = ""
    backend: str = ""
    cudnn: int | None = field(default=None, repr=False)
    bf16: bool = field(default=True, repr=False)


_known: "weakref.WeakKeyDictionary[Any, DeviceProperties]" = weakref.WeakKeyDictionary()


def get_device_properties(device: Any = None) -> DeviceProperties:
    """Returns the properties. Asks each acceptor once."""
    _check(device)
    peer = link.peer()
    found = _known.get(peer)
    if found is None:
        told = link.ask({"op": "properties"}).header
        found = DeviceProperties(**{one.name: told[one.name] for one in fields(DeviceProperties) if one.name in told})
        _known[peer] = found
    return found


def is_available() -> bool:
    """Opens the session, and returns True. Also True in forked children, as with a local driver."""
    if not link.forked():
        link.peer()
    return True


def device_count() -> int:
    return 1


def set_device(device: Any) -> None:
    """Checks that `device` is the only device. Raises RuntimeError otherwise."""
    _check(device)


def get_device_name(device: Any = None) -> str:
    return get_device_properties(device).name


def get_device_capability(device: Any = None) -> tuple[int, int]:
    found = get_device_properties(device)
    return found.major, found.minor


def is_bf16_supported(including_emulation: bool = True) -> bool:  # noqa: ARG001 - torch's signature
    return get_device_properties().bf16


class device:  # noqa: N801 - torch's name
    """The context manager of `with torch.cuda.device(d):`, which only checks d, because there is one device."""

    def __init__(self, chosen: Any) -> None:
        _check(chosen)
        self.idx, self.prev_idx = 0, 0

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_error: object) -> None:
        return None


class device_of(device):  # noqa: N801 - torch's name
    def __init__(self, tensor: Any) -> None:
        super().__init__(0 if device_names.is_remote(tensor) else None)


def _check(chosen: Any) -> None:
    """Checks the device. Raises RuntimeError for an index other than 0, ValueError for another kind of device."""
    if isinstance(chosen, int) and chosen > 0:
        device_names.to_remote(f"{shown.current()}:{chosen}")
    elif isinstance(chosen, (str, shown.device_type)):
        true = torch.device(device_names.to_remote(chosen))
        if true.type != NAME:
            raise ValueError(f"Expected a {shown.current()} device, but got: {chosen}")


def _index(device: Any = None, optional: bool = False) -> int:  # noqa: ARG001 - torch's signature
    _check(device)
    return 0


def _memory() -> dict[str, int]:
    return dict(link.ask({"op": "memory"}).header)


def memory_allocated(device: Any = None) -> int:
    _check(device)
    return _memory()["allocated"]


def max_memory_allocated(device: Any = None) -> int:
    _check(device)
    return _memory()["peak_allocated"]


def memory_reserved(device: Any = None) -> int:
    _check(device)
    return _memory()["reserved"]


def max_memory_reserved(device: Any = None) -> int:
    _check(device)
    return _memory()["peak_reserved"]


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Returns free and total memory of the acceptor's device, in bytes."""
    _check(device)
    found = _memory()
    return found["free"], found["total"]


def memory_stats(device: Any = None) -> dict[str, Any]:
    """Returns the subset of torch's memory figures that every back end has."""
    _check(device)
    found = _memory()
    stats: dict[str, Any] = {}
    for kind in _PEAKS:
        stats[f"{kind}_bytes.all.current"] = found[kind]
        stats[f"{kind}_bytes.all.peak"] = found[f"peak_{kind}"]
    return stats


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:  # noqa: ARG001 - torch's signature
    found = _memory()
    lines = [f"Memory of {get_device_name(device)}, as its acceptor tells it"]
    return "\n".join(
        [*lines, *(f"  {key.replace('_', ' '):15} {value / 2**20:12.1f} MiB" for key, value in found.items())]
    )


def reset_peak_memory_stats(device: Any = None) -> None:
    _check(device)
    link.tell({"op": "reset_peak"})


def empty_cache() -> None:
    link.tell({"op": "empty_cache"})


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """Ignores settings of a local driver: the acceptor has its own."""


def _utilization(_device: Any = None) -> int:
    raise RuntimeError(
        "torch.cuda.utilization: no driver in this machine counts a remote device's load. See `remotegpu offload stats`"
    )


def _bad_fork() -> bool:
    return link.forked()


ANSWERS: Final[dict[str, Any]] = {
    # torch's guards for an uninitialised device are not needed: these functions open the session themselves.
    "_initialized": True,
    "_is_in_bad_fork": _bad_fork,
    "_lazy_init": link.peer,
    "_lazy_call": lambda call, **_more: call(),
    "can_device_access_peer": lambda *_devices: False,
    "current_device": lambda: 0,
    "device": device,
    "device_count": device_count,
    "device_of": device_of,
    "empty_cache": empty_cache,
    "get_arch_list": lambda: ["sm_{}{}".format(*get_device_capability())] if get_device_capability()[0] else [],
    "get_device_capability": get_device_capability,
    "get_device_name": get_device_name,
    "get_device_properties": get_device_properties,
    "get_gencode_flags": lambda: "",
    "init": is_available,
    "ipc_collect": _nothing,
    "is_available": is_available,
    "is_bf16_supported": is_bf16_supported,
    "is_initialized": link.is_open,
    "is_tf32_supported": lambda: get_device_capability()[0] >= 8,
    "max_memory_allocated": max_memory_allocated,
    "max_memory_cached": max_memory_reserved,
    "max_memory_reserved": max_memory_reserved,
    "mem_get_info": mem_get_info,
    "memory_allocated": memory_allocated,
    "memory_cached": memory_reserved,
    "memory_reserved": memory_reserved,
    "memory_stats": memory_stats,
    "memory_summary": memory_summary,
    "reset_accumulated_memory_stats": _nothing,
    "reset_max_memory_allocated": reset_peak_memory_stats,
    "reset_max_memory_cached": reset_peak_memory_stats,
    "reset_peak_memory_stats": reset_peak_memory_stats,
    "set_device": set_device,
    "set_per_process_memory_fraction": _nothing,
    "utilization": _utilization,
}
MPS: Final[dict[str, Any]] = {
    "current_allocated_memory": memory_allocated,
    "driver_allocated_memory": memory_reserved,
    "recommended_max_memory": lambda: mem_get_info()[1],
}
ACCELERATOR_MEMORY: Final = (
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_peak_memory_stats",
)
ACCELERATOR: Final[dict[str, Any]] = {
    "_get_device_index": _index,
    **{name: ANSWERS[name] for name in ACCELERATOR_MEMORY},
    "current_accelerator": lambda check_available=False: torch.device(shown.current()),  # noqa: ARG005 - torch's signature
    "current_device_idx": lambda: 0,
    "current_device_index": lambda: 0,
    "device_count": device_count,
    "get_memory_info": mem_get_info,
    "is_available": is_available,
    "set_device_idx": set_device,
    "set_device_index": set_device,
}
