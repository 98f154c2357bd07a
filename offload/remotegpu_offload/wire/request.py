"""Arguments and results of handlers: a request of the other side, its answer, and counters of both directions."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, final

from remotegpu_offload.wire.frames import Buffer, Frame, Kind, Message, encode


@final
class Deferred:
    """The result of a handler that answers later, perhaps on another thread, by `request.reply` or `request.fail`."""


DEFERRED: Final = Deferred()


class Counters:
    """Counts of one side's traffic. `served` counts requests of the other side."""

    def __init__(self) -> None:
        self.round_trips = 0
        self.by_service: Counter[str] = Counter()
        self.notices = 0
        self.served: Counter[str] = Counter()
        self.bytes_out = 0
        self.bytes_in = 0

    def as_dict(self) -> dict[str, Any]:
        """Returns the counters as JSON types."""
        return {
            "round_trips": self.round_trips,
            "by_service": dict(self.by_service),
            "notices": self.notices,
            "served": dict(self.served),
            "bytes_out": self.bytes_out,
            "bytes_in": self.bytes_in,
        }


class Request:
    """A request of the other side; a notice if `id` is 0."""

    __slots__ = ("_answered", "_send", "buffers", "header", "id", "service", "thread")

    def __init__(self, send: Callable[[Sequence[Buffer]], None], frame: Frame) -> None:
        self._send = send
        self._answered = False
        self.service = frame.service
        self.thread = frame.thread
        self.id = frame.id
        self.header = frame.header
        self.buffers = frame.buffers

    @property
    def answered(self) -> bool:
        return self._answered

    def reply(self, header: dict[str, Any], buffers: Sequence[Buffer] = ()) -> None:
        """Sends the answer. Does nothing for a notice, after an earlier answer, or if the other side is lost.

        May be called on any thread, by one thread at a time.
        """
        self._answer(Kind.REPLY, header, buffers)

    def fail(self, error: str, **details: Any) -> None:
        """Answers with a failure, which raises RemoteFailure with this sentence at the other end.

        `details`: JSON types.
        """
        self._answer(Kind.FAILURE, {"error": error, "details": details}, ())

    def _answer(self, kind: Kind, header: dict[str, Any], buffers: Sequence[Buffer]) -> None:
        if self.id == 0 or self._answered:
            return
        parts = encode(Frame(kind, self.service, self.thread, self.id, header, buffers))
        self._answered = True
        self._send(parts)


Handler = Callable[[Request], Message | Deferred | None]
