"""Reads XIDs from NVML in a thread of its own."""

import ctypes
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import pynvml

_log = logging.getLogger(__name__)

# The longest time that `close` waits for the thread.
_WAIT_MILLISECONDS: Final = 500


class XidEvents:
    """Calls `tell(uuid, number)` for every XID of these GPUs, until `close`.

    `unwatched` is the reason why a GPU is not watched; empty if all GPUs are.
    """

    def __init__(self, handles: Mapping[str, Any], tell: Callable[[str, int], None]) -> None:
        self.unwatched = ""
        self._tell = tell
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        try:
            self._set = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as error:
            self.unwatched = f"NVML tells no events: {error}"
            return
        watched: dict[int, str] = {}
        for uuid, handle in handles.items():
            try:
                pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._set)
                watched[_address(handle)] = uuid
            except pynvml.NVMLError as error:
                self.unwatched = f"NVML tells no events of {uuid}: {error}"
        self._thread = threading.Thread(target=self._follow, args=(watched,), name="xids", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
            pynvml.nvmlEventSetFree(self._set)

    def _follow(self, watched: Mapping[int, str]) -> None:
        complaint = ""
        while not self._closing.is_set():
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, _WAIT_MILLISECONDS)
            except pynvml.NVMLError_Timeout:
                continue
            except pynvml.NVMLError as error:
                # The regular check of each GPU finds out which one is gone.
                if str(error) != complaint:
                    complaint = str(error)
                    _log.error("NVML tells no events now: %s; trying again", complaint)
                self._closing.wait(_WAIT_MILLISECONDS / 1000)
                continue
            complaint = ""
            uuid = watched.get(_address(event.device))
            if event.eventType == pynvml.nvmlEventTypeXidCriticalError and uuid is not None:
                self._tell(uuid, int(event.eventData))


def _address(handle: Any) -> int:
    """Returns the address of a handle, which identifies the GPU as long as NVML is initialised."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
