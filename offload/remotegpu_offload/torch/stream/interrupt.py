"""Delays KeyboardInterrupt on Ctrl-C while torch's C++ code runs, until that code has returned.

For each result that autograd tracks, torch asks the device guard for its stream. The guard is Python code, called from
a C++ function that allows no exceptions: an exception there aborts the process (std::terminate, torch 2.15). Python may
also run signal handlers at that point.
"""

import ctypes
import importlib
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any, Final

from remotegpu_offload.wire import interrupts

# The C module without the enums of `signal`, which take longer than the rest of a flush.
_signal: Final[Any] = importlib.import_module("_signal")
_SIGINT: Final = int(signal.SIGINT)
_AGAIN_SECONDS: Final = 0.001
_DEEPEST: Final = 64
_TORCH: Final = ("libtorch", "libc10")
# Libraries on the stack between this handler and the interrupted code.
_PYTHON: Final = ("python", "libpython", "_ctypes", "libffi", "libc.so", "libc-", "libgcc")


class _Place(ctypes.Structure):
    """The structure Dl_info of dladdr(3)."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


_process: Final = ctypes.PyDLL(None)


def watch_cells() -> None:
    """Calls `watch` before each cell of a notebook, because the kernel restores Python's own handler for each cell."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None:
        shell.events.register("pre_run_cell", _before_cell)


def _before_cell(_cell: object) -> None:
    watch()


def watch() -> None:
    """Installs the handler for Ctrl-C if Python's own handler is set.

    Called often, because that handler may be restored.
    """
    if (
        _signal.getsignal(_SIGINT) is signal.default_int_handler
        and threading.current_thread() is threading.main_thread()
    ):
        signal.signal(signal.SIGINT, _interrupted)


def _interrupted(_number: int, _frame: FrameType | None) -> None:
    if not _in_torch():
        raise KeyboardInterrupt
    # Send the signal again later. PyThreadState_SetAsyncExc would raise the exception in this very function.
    timer = threading.Timer(_AGAIN_SECONDS, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    timer.daemon = True
    timer.start()


def _in_torch() -> bool:
    """Returns whether the signal has interrupted torch's C++ code, and not Python code."""
    frames = (ctypes.c_void_p * _DEEPEST)()
    for address in frames[: _process.backtrace(frames, _DEEPEST)]:
        place = _Place()
        if _process.dladdr(ctypes.c_void_p(address), ctypes.byref(place)) and place.file:
            name = Path(os.fsdecode(place.file)).name
            if not name.startswith(_PYTHON):
                return name.startswith(_TORCH)
    return False


interrupts.defaults.append(_interrupted)
