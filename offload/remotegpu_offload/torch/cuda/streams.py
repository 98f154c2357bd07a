"""Streams and events. A session executes its operations in order, so every stream is the same sequence, and waiting for
another stream needs no action.

An event marks a position in the sequence; the acceptor records the time when its device reaches the position.
"""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any, Final

import torch

from remotegpu_offload.torch import shown
from remotegpu_offload.torch.script import device_names
from remotegpu_offload.torch.stream import link

_ids = itertools.count(1)


def synchronize(device: Any = None) -> None:
    """Waits until the acceptor's device has finished all operations. Raises the error of a failed operation."""
    device_names.to_remote(device)
    link.ask({"op": "sync"})


class Stream:
    """A torch stream. All streams stand for the session's one sequence of operations.

    The priority and the id have no effect.
    """

    def __init__(self, device: Any = None, priority: int = 0, **_more: Any) -> None:
        device_names.to_remote(device)
        self.priority = priority
        self.stream_id = next(_ids)
        self.device_index = 0

    @property
    def device(self) -> Any:
        return torch.device(shown.current(), 0)

    @property
    def cuda_stream(self) -> int:
        return 0

    device_type = 1

    def wait_event(self, event: "Event") -> None:
        """Does nothing: operations that were recorded earlier run earlier."""

    def wait_stream(self, stream: "Stream") -> None:
        """Does nothing: operations that were queued earlier run earlier."""

    def record_event(self, event: "Event | None" = None) -> "Event":
        event = event if event is not None else Event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Waits until all operations are finished, so the result is always True."""
        synchronize()
        return True

    def synchronize(self) -> None:
        synchronize()

    def is_capturing(self) -> bool:
        return False

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_error: object) -> None:
        return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return self.stream_id

    def __repr__(self) -> str:
        return f"<torch.{shown.current()}.Stream of the remote device, number {self.stream_id}>"


_DEFAULT: Final = Stream()


class Event:
    """A position in the sequence, with the time when the acceptor's device reached it."""

    def __init__(self, device: Any = None, enable_timing: bool = False, **_more: Any) -> None:
        self.enable_timing = enable_timing or (isinstance(device, bool) and device)
        self.event_id = next(_ids)
        self.recorded = False

    def record(self, stream: Stream | None = None) -> None:  # noqa: ARG002 - there is only one stream
        link.tell({"op": "event_record", "event": self.event_id})
        self.recorded = True

    def wait(self, stream: Stream | None = None) -> None:
        """Does nothing: operations that were recorded earlier run earlier."""

    def query(self) -> bool:
        """Waits until the position is reached, so the result is always True."""
        self.synchronize()
        return True

    def synchronize(self) -> None:
        if self.recorded:
            synchronize()

    def elapsed_time(self, end_event: "Event") -> float:
        """Returns the milliseconds from this event to the other. Waits for both.

        Raises RuntimeError unless both were made with `enable_timing=True` and were recorded.
        """
        if not (self.enable_timing and end_event.enable_timing):
            raise RuntimeError("both events must be made with enable_timing=True")
        if not (self.recorded and end_event.recorded):
            raise RuntimeError("both events must be recorded before calculating elapsed time")
        reply = link.ask({"op": "event_elapsed", "start": self.event_id, "end": end_event.event_id})
        return float(reply.header["milliseconds"])

    def ipc_handle(self) -> bytes:
        raise RuntimeError(
            "Event.ipc_handle: an event of a remote device cannot be shared with another process. Record it in this one"
        )

    def __del__(self) -> None:
        if self.recorded:
            link.forget("events", self.event_id)


def current_stream(_device: Any = None) -> Stream:
    return _DEFAULT


@contextlib.contextmanager
def stream(chosen: Any) -> Iterator[Any]:
    """Implements `with torch.cuda.stream(s):`, which changes nothing because there is one sequence."""
    yield chosen


def set_stream(_stream: Any) -> None:
    """Does nothing, because there is one sequence."""


class StreamContext:
    """The class form of `stream`."""

    def __init__(self, chosen: Any) -> None:
        self.stream = chosen

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_error: object) -> None:
        return None


ANSWERS: Final[dict[str, Any]] = {
    "Event": Event,
    "Stream": Stream,
    "StreamContext": StreamContext,
    "current_stream": current_stream,
    "default_stream": current_stream,
    "is_current_stream_capturing": lambda: False,
    "set_stream": set_stream,
    "set_sync_debug_mode": lambda _mode: None,
    "stream": stream,
    "synchronize": synchronize,
}
ACCELERATOR: Final[dict[str, Any]] = {
    "current_stream": current_stream,
    "set_stream": set_stream,
    "synchronize": synchronize,
}
