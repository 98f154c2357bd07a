"""Calls of the CUDA driver for interpreters without torch: list the devices, and check that they compute.

The calls follow the CUDA Driver API documentation. A process that will fork must not call this module.
"""

import ctypes
from functools import cache
from typing import Any, Final

_LONGEST_NAME: Final = 256
_WORDS: Final = 1000


class DriverError(Exception):
    """No CUDA driver was found, or a driver call failed; the message says which."""


@cache
def _library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DriverError(str(error)) from None


def _call(name: str, *arguments: Any) -> None:
    code = getattr(_library(), name)(*arguments)
    if code:
        raise DriverError(f"{name} returns {code}")


def devices() -> tuple[str, ...]:
    """Returns the names of the devices. Raises DriverError."""
    _call("cuInit", 0)
    count = ctypes.c_int()
    _call("cuDeviceGetCount", ctypes.byref(count))
    names = []
    for device in range(count.value):
        name = ctypes.create_string_buffer(_LONGEST_NAME)
        _call("cuDeviceGetName", name, _LONGEST_NAME, device)
        names.append(name.value.decode(errors="replace"))
    return tuple(names)


def compute() -> None:
    """Fills memory of the first device and checks the result. Raises DriverError."""
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    _call("cuInit", 0)
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    _call("cuCtxSetCurrent", context)
    _call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(4 * _WORDS))
    _call("cuMemsetD32_v2", memory, ctypes.c_uint(7), ctypes.c_size_t(_WORDS))
    found = (ctypes.c_uint * _WORDS)()
    _call("cuMemcpyDtoH_v2", found, memory, ctypes.c_size_t(4 * _WORDS))
    _call("cuMemFree_v2", memory)
    if any(word != 7 for word in found):
        raise DriverError("memory that was filled with 7 has something else")
