"""Call requests between the two ends, and their answers. Both ends use this, and each restricts the other's calls."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol

from remotegpu_offload.functions import errors, lost
from remotegpu_offload.objects import pages
from remotegpu_offload.objects.codec import Codec, Packed, RefusedError, UnknownObjectError
from remotegpu_offload.wire.frames import Message, Service
from remotegpu_offload.wire.peer import Peer
from remotegpu_offload.wire.request import Request

DEEPEST: Final = 40
"""How deeply the two ends may call each other back."""
# How long values of an iterator are collected before they are sent.
_COLLECTING: Final = 0.001


class _Local(threading.local):
    """The state of one thread: the nesting depth of calls, and exceptions that were raised here and sent."""

    depth = 0

    def __init__(self) -> None:
        self.raised: dict[int, BaseException] = {}


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """Converts errors in reading an answer to RefusedError: the other end may be an unknown program."""
    try:
        yield
    except (RefusedError, UnknownObjectError):
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise RefusedError(
            f"the other end's answer is none ({type(error).__name__}: {error}): run the same version on both ends"
        ) from error


class Store(Protocol):
    """The interface of `moving.Store`, which moves an acceptor's objects."""

    def answer(self, header: dict[str, Any], buffers: Sequence[Any]) -> Message: ...


class Link:
    """One end of a session's calls.

    Args:
        peer: returns the connection; called for each request, because a session may move.
        perform: executes a request of the other end; returns the answer's value and header entries.
        where: the name of this end for users, such as "the acceptor cpu".
    """

    def __init__(
        self,
        codec: Codec,
        peer: Callable[[], Peer],
        perform: Callable[[dict[str, Any], Any], tuple[Any, dict[str, Any]]],
        where: str,
    ) -> None:
        self.codec = codec
        codec.fetch = self.fetch
        # Only in the acceptor: moves its objects.
        self.store: Store | None = None
        # Adds notes to exceptions of this end before they are sent.
        self.explain: Callable[[BaseException], None] = lambda _error: None
        self.where = where
        self._peer = peer
        self._perform = perform
        self._local = _Local()

    def ask(self, header: dict[str, Any], payload: Any) -> Any:
        """Makes one round trip; returns the other end's answer, or raises its exception.

        Raises CrossingError if the payload cannot be sent, TooDeepError, LostError, RefusedError for an invalid answer,
        and any exception of the call.
        """
        return self.ask_fully(header, payload)[0]

    def ask_fully(self, header: dict[str, Any], payload: Any) -> tuple[Any, dict[str, Any]]:
        """Makes one round trip, as `ask` does; returns the answer and its header."""
        depth = self._local.depth + 1
        if depth > DEEPEST:
            raise errors.TooDeepError(
                f"this program and the acceptor have called each other back {DEEPEST} times within one call: "
                "make the recursion one function that runs at one end"
            )
        if depth > 1:
            header["depth"] = depth
            return self._asked(header, payload)
        try:
            return self._asked(header, payload)
        finally:
            self._forget_raised()

    def _asked(self, header: dict[str, Any], payload: Any) -> tuple[Any, dict[str, Any]]:
        packed = self.codec.dumps(payload, paged=True)
        header.update(packed.header)
        try:
            with lost.naming(lambda: lost.called(header, payload)):
                reply = self._peer().request(Service.CALL, header, packed.buffers)
        finally:
            self.codec.sent(packed)
        with _reading():
            described = reply.header.get("raised")
            if described is None:
                return self.codec.loads(reply.header, reply.buffers), reply.header
            error = self._error(described, reply.header, reply.buffers)
        try:
            raise error
        finally:
            # Otherwise the error would hold its traceback and thus this frame, with handles.
            del error

    def pull(self, ident: int, most: int) -> tuple[list[Any], BaseException | None]:
        """Fetches at most `most` next values of an iterator at the other end, and the exception that ended it."""
        packed = self.codec.dumps(((), {}))
        header = {"o": ident, "m": "__next__", "most": most, **packed.header}
        try:
            reply = self._peer().request(Service.CALL, header, packed.buffers)
            with _reading():
                return self._pulled(reply)
        finally:
            if not self._local.depth:
                self._forget_raised()

    def _forget_raised(self) -> None:
        """Forgets exceptions of a call that has ended: the acceptor may have handled them."""
        if self.codec.client:
            self._local.raised.clear()

    def _pulled(self, reply: Message) -> tuple[list[Any], BaseException | None]:
        described = reply.header.get("raised")
        if described is not None and "items" not in reply.header:
            return [], self._error(described, reply.header, reply.buffers)
        found, at = [], 0
        for each in reply.header["items"]:
            count = int(each["buffers"])
            found.append((each, reply.buffers[at : at + count]))
            at += count
        if described is not None:
            last, buffers = found.pop()
            return [self.codec.loads(*item) for item in found], self._error(described, last, buffers)
        if reply.header["ended"]:
            returned = self.codec.loads(*found.pop())
            return [self.codec.loads(*item) for item in found], StopIteration(returned)
        return [self.codec.loads(*item) for item in found], None

    def push(self, values: Iterator[Any], most: int) -> Message:
        """Answers a `pull`. Pickles each value at once, because the iterator may yield the same object repeatedly."""
        items: list[dict[str, Any]] = []
        buffers: list[Any] = []
        header: dict[str, Any] = {"items": items, "ended": False}

        def add(packed: Packed) -> bool:
            items.append({**packed.header, "buffers": len(packed.buffers)})
            buffers.extend(packed.buffers)
            # Large buffers are not copied into the pickle: they are still the object's own memory.
            return len(packed.buffers) == 1 and len(packed.buffers[0]) < pages.FLOOR

        until = time.monotonic() + _COLLECTING
        while len(items) < most:
            try:
                if not add(self.codec.dumps(next(values))) or time.monotonic() > until:
                    break
            except StopIteration as end:
                add(self.codec.dumps(end.value))
                header["ended"] = True
                break
            except BaseException as error:
                header["raised"] = errors.describe(error, self.where)
                try:
                    add(self.codec.dumps(errors.contents(error)))
                except Exception:
                    add(self.codec.dumps(None))
                break
        return Message(header, buffers)

    def log(self, record: list[Any]) -> None:
        """Sends a log record to the other end as a notice."""
        self._peer().notify(Service.CALL, {"op": "log", "record": record})

    def _error(self, described: dict[str, Any], header: dict[str, Any], buffers: Sequence[Any]) -> BaseException:
        found = None
        if "v" in header:
            try:
                found = self.codec.loads(header, buffers)
            except (RefusedError, UnknownObjectError):
                # The arguments are refused, but the text is used.
                found = None
        # An exception that was raised here and passed through the other end stays the same object.
        passed = self._local.raised.get(int(described.get("passed") or 0))
        return errors.rebuild(described, found) if passed is None else passed

    def fetch(self, hold: int, names: list[str]) -> list[Any]:
        """Fetches pages that a message of the other end refers to and that are not cached here."""
        reply = self._peer().request(Service.OBJECTS, {"op": "pages", "hold": hold, "names": names})
        return list(reply.buffers)

    def answer(self, request: Request) -> Message | None:
        """Answers a request of Service.CALL: executes it, and returns its value or its exception."""
        before, self._local.depth = self._local.depth, max(1, int(request.header.get("depth", 1)))
        try:
            value, more = self._carry_out(request)
            if isinstance(value, Message):
                return value
            packed = self.codec.dumps(value, inside=more.pop("inside", ()))
            return Message({**more, **packed.header}, packed.buffers)
        except BaseException as error:
            return self._raised(error)
        finally:
            self._local.depth = before
            if not before and not self.codec.client:
                self._local.raised.clear()

    def _carry_out(self, request: Request) -> tuple[Any, dict[str, Any]]:
        payload = self.codec.loads(request.header, request.buffers)
        # Releases handles in the payload before the answer is written, so that the answer can report them.
        request.buffers = ()
        return self._perform(request.header, payload)

    def _raised(self, error: BaseException) -> Message:
        self.explain(error)
        described = errors.describe(error, self.where)
        raised = self._local.raised
        raised[id(error)] = error
        described["id"] = id(error)
        try:
            packed = self.codec.dumps(errors.contents(error))
        except Exception:
            return Message({"raised": described})
        return Message({"raised": described, **packed.header}, packed.buffers)

    def answer_about_objects(self, request: Request) -> Message | None:
        """Answers a request of Service.OBJECTS: sends pages of this end's messages, and releases freed handles."""
        header = request.header
        match header.get("op"):
            case "pages":
                return Message({}, self.codec.outgoing.pages(int(header["hold"]), list(header["names"])))
            case "free":
                self.codec.exports.release((int(ident), int(count)) for ident, count in header["free"])
                return Message({})
            case "save" | "piece" | "begin" | "more" | "take" if self.store is not None:
                return self.store.answer(header, request.buffers)
            case other:
                request.fail(f"{other!r} is nothing that objects can do: run the same version on both ends")
                return None
