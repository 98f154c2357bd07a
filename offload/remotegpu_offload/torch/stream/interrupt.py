"""Ctrl-C while torch's own code runs: KeyboardInterrupt is raised when that has returned.

For each result that autograd follows torch asks the device guard for its stream, which is Python's to answer, in a C++
function that lets no exception through: one there ends the process (std::terminate, torch 2.15). Python looks for
signals on that way too.
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

# Without the module's enums, which take longer than the rest of a flush.
_signal: Final[Any] = importlib.import_module("_signal")
_SIGINT: Final = int(signal.SIGINT)
_AGAIN_SECONDS: Final = 0.001
_DEEPEST: Final = 64
_TORCH: Final = ("libtorch", "libc10")
# What is on the way from this handler to whatever it has interrupted.
_PYTHON: Final = ("python", "libpython", "_ctypes", "libffi", "libc.so", "libc-", "libgcc")


class _Place(ctypes.Structure):
    """Dl_info of dladdr(3)."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


_process: Final = ctypes.PyDLL(None)


def watch_cells() -> None:
    """In a notebook, whose kernel puts Python's own handler back for each cell: `watch` before each."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None:
        shell.events.register("pre_run_cell", _before_cell)


def _before_cell(_cell: object) -> None:
    watch()


def watch() -> None:
    """Handles Ctrl-C if only Python's own handler does. Called often, since that handler may be put back."""
    if (
        _signal.getsignal(_SIGINT) is signal.default_int_handler
        and threading.current_thread() is threading.main_thread()
    ):
        signal.signal(signal.SIGINT, _interrupted)


def _interrupted(_number: int, _frame: FrameType | None) -> None:
    if not _in_torch():
        raise KeyboardInterrupt
    # Come again. An asynchronous exception (PyThreadState_SetAsyncExc) would be raised in this very function.
    timer = threading.Timer(_AGAIN_SECONDS, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    timer.daemon = True
    timer.start()


def _in_torch() -> bool:
    """Whether what has been interrupted is torch's code rather than Python's."""
    frames = (ctypes.c_void_p * _DEEPEST)()
    for address in frames[: _process.backtrace(frames, _DEEPEST)]:
        place = _Place()
        if _process.dladdr(ctypes.c_void_p(address), ctypes.byref(place)) and place.file:
            name = Path(os.fsdecode(place.file)).name
            if not name.startswith(_PYTHON):
                return name.startswith(_TORCH)
    return False


interrupts.defaults.append(_interrupted)
