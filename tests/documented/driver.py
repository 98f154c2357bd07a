"""CUDA's driver and NVML by ctypes, as the rows of this table call them: each function returns its code.

A driver may break one rule: then a function replaces a real one, and gets the real driver as an argument.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

# Names of today's versions, which the headers' macros would choose.
VERSIONS: Final = {
    name: f"{name}_v2"
    for name in [
        "cuMemAlloc",
        "cuMemFree",
        "cuMemAllocPitch",
        "cuMemGetInfo",
        "cuMemGetAddressRange",
        "cuMemcpyHtoD",
        "cuMemcpyDtoH",
        "cuMemcpyDtoD",
        "cuMemcpyHtoDAsync",
        "cuMemcpyDtoHAsync",
        "cuMemcpyDtoDAsync",
        "cuMemsetD8",
        "cuMemsetD16",
        "cuMemsetD32",
        "cuMemsetD2D8",
        "cuCtxCreate",
        "cuCtxDestroy",
        "cuCtxPushCurrent",
        "cuCtxPopCurrent",
        "cuStreamDestroy",
        "cuEventDestroy",
        "cuModuleGetGlobal",
        "cuMemHostGetDevicePointer",
        "cuMemHostRegister",
        "cuDeviceTotalMem",
        "cuDevicePrimaryCtxRelease",
        "cuDeviceGetUuid",
        "cuDevicePrimaryCtxReset",
        "cuStreamBeginCapture",
        "cuGraphAddKernelNode",
        "cuStreamWaitValue32",
        "cuStreamWriteValue32",
    ]
} | {"cuGraphInstantiate": "cuGraphInstantiateWithFlags"}

# The types of functions for `cuLaunchHostFunc` and `cuStreamAddCallback`.
HOST_FUNCTION: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
STREAM_CALLBACK: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
NON_BLOCKING: Final = 1
LEGACY: Final = 1
PER_THREAD: Final = 2

# Two kernels: one adds one to a word, the other does nothing.
PTX: Final = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .global .align 4 .u32 counter = 7;
.visible .entry add_one(.param .u64 word) {
    .reg .u64 %a; .reg .u32 %v;
    ld.param.u64 %a, [word];
    ld.global.u32 %v, [%a];
    add.u32 %v, %v, 1;
    st.global.u32 [%a], %v;
    ret;
}
.visible .entry nothing() { ret; }
\0"""

Broken = Callable[..., int]

# Seconds. A held stream is released when the call that waits for it does not return so soon, and in any case after
# HELD, so that nothing stands longer than that. LATE is for calls that must not wait, which a crowded machine delays.
SOON, LATE, HELD = 0.05, 10.0, 15.0


class Library:
    """A shared library whose functions are called by name; whole numbers are passed as 64 bits."""

    def __init__(self, name: str, broken: Mapping[str, Broken] | None = None, real: Library | None = None) -> None:
        self._library: ctypes.CDLL = real._library if real else ctypes.CDLL(name)
        self._broken = dict(broken or {})
        self._real = real

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name in self._broken:
            instead = self._broken[name]
            return lambda *arguments: instead(self._real, *arguments)
        function = getattr(self._library, VERSIONS.get(name, name))
        return lambda *arguments: int(function(*map(_argument, arguments)))

    def with_broken(self, broken: Mapping[str, Broken]) -> Library:
        return Library("", broken, self)


class OneKept(Library):
    """A driver whose one function is not called yet, but kept with its arguments."""

    def __init__(self, driver: Library, function: str) -> None:
        super().__init__("", real=driver)
        self._driver, self._function = driver, function
        self.call: Callable[[], int] = lambda: 1

    def __getattr__(self, name: str) -> Callable[..., int]:
        real: Callable[..., int] = getattr(self._driver, name)
        if name != self._function:
            return real

        def keep(*arguments: object) -> int:
            # What the arguments point to has to live as long.
            self.call = lambda: int(real(*arguments))
            return 0

        return keep


def _argument(value: Any) -> Any:
    return ctypes.c_uint64(value & (1 << 64) - 1) if isinstance(value, int) else value


def word(value: int = 0) -> ctypes.c_uint64:
    return ctypes.c_uint64(value)


def out(place: ctypes._CData) -> Any:
    return ctypes.byref(place)


@dataclass
class Machine:
    """The context of a row: a driver with a current context, NVML, and the time to check whether a call waits."""

    cuda: Library
    nvml: Library
    # How long work is held for a call that must not wait for it.
    patience: float = LATE
    context: int = 0
    kept: list[object] = field(default_factory=list)

    def ok(self, name: str, *arguments: Any) -> None:
        code = getattr(self.cuda, name)(*arguments)
        assert code == 0, f"{name} answers {code}"

    def made(self, name: str, *arguments: Any) -> int:
        """Calls a function whose first parameter receives a handle or an address. Returns that."""
        place = word()
        self.ok(name, out(place), *arguments)
        return place.value

    def stream(self, flags: int = NON_BLOCKING) -> int:
        return self.made("cuStreamCreate", flags)

    def event(self, flags: int = 0) -> int:
        return self.made("cuEventCreate", flags)

    def memory(self, size: int = 4096, value: int = 0) -> int:
        """Device memory whose words are `value`, and whose filling has ended."""
        address = self.made("cuMemAlloc", size)
        self.ok("cuMemsetD32", address, value, size // 4)
        self.ok("cuCtxSynchronize")
        return address

    def host(self, size: int = 4096, value: int = 0) -> ctypes.Array[ctypes.c_uint32]:
        """Page-locked memory."""
        address = self.made("cuMemAllocHost_v2", size)
        words = (ctypes.c_uint32 * (size // 4)).from_address(address)
        for place in range(size // 4):
            words[place] = value
        return words

    def look(self, address: int) -> int:
        """Reads a word of device memory by a stream that waits for no other."""
        stream, found = self.stream(), self.host()
        self.ok("cuMemcpyDtoHAsync", found, address, 4, stream)
        self.ok("cuStreamSynchronize", stream)
        return found[0]

    def function(self, name: str = "add_one") -> int:
        return self.made("cuModuleGetFunction", self.made("cuModuleLoadData", PTX), name.encode())

    def launch(self, function: int, address: int | None, stream: int, grid: int = 1, block: int = 1) -> int:
        pointer = word(address or 0)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(pointer))
        self.kept += [pointer, parameters]
        return self.cuda.cuLaunchKernel(
            function, grid, 1, 1, block, 1, 1, 0, stream, parameters if address is not None else None, None
        )

    def call(self, function: Callable[[], object]) -> Any:
        """A host function for `cuLaunchHostFunc`, which lives as long as the row."""
        made = HOST_FUNCTION(lambda _: function() and None)
        self.kept.append(made)
        return made

    @contextmanager
    def held(self, stream: int) -> Iterator[threading.Event]:
        """Holds the stream's work during the block, or until the event is set; then waits for its end."""
        go = threading.Event()
        self.ok("cuLaunchHostFunc", stream, self.call(lambda: go.wait(HELD)), None)
        try:
            yield go
        finally:
            go.set()
            self.cuda.cuStreamSynchronize(stream)

    def waits(self, stream: int, call: Callable[[], int]) -> bool:
        """Whether `call` returns only after the stream's work, which ends soon, or when it has returned."""
        return self._ended_before(SOON, stream, call)

    def returns_at_once(self, stream: int, call: Callable[[], int]) -> bool:
        """Whether `call` returns while the stream's work is held, which is as long as patience lasts."""
        return not self._ended_before(self.patience, stream, call)

    def _ended_before(self, seconds: float, stream: int, call: Callable[[], int]) -> bool:
        returned, ended = threading.Event(), threading.Event()

        def work() -> None:
            returned.wait(seconds)
            ended.set()

        self.ok("cuLaunchHostFunc", stream, self.call(work), None)
        code = call()
        had_ended = ended.is_set()
        returned.set()
        self.cuda.cuStreamSynchronize(stream)
        assert code == 0, f"answers {code}"
        return had_ended


def in_thread(function: Callable[[], Any]) -> Any:
    """Calls a function in a new thread, and returns its result."""
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(function())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]
