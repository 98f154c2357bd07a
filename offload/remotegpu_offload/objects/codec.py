"""One end's codec for a session's values: writes and reads messages, and counts the objects that the ends share."""

import itertools
import pickle
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from io import BytesIO
from typing import Any, Final, NamedTuple

from remotegpu_offload.objects import encoder as encoding
from remotegpu_offload.objects import locate, pages, restricted, vocabulary
from remotegpu_offload.objects.encoder import Encoder, Exported, register
from remotegpu_offload.objects.errors import CrossingError, RefusedError, UnknownObjectError
from remotegpu_offload.objects.pages import Buffer
from remotegpu_offload.objects.table import ACCEPTORS, Handle, Held, Residents, Table

__all__ = [
    "CALLER",
    "HANDLE",
    "Codec",
    "CrossingError",
    "Exported",
    "Packed",
    "RefusedError",
    "Replaced",
    "UnknownObjectError",
    "handle_of",
    "register",
]

HANDLE: Final = "_remotegpu_handle"
"""The attribute in which a proxy keeps its handle."""
CALLER: Final = "_remotegpu_caller"
"""The attribute in which an instance here keeps the calls of the session in which it lives."""

MakeProxy = Callable[[Handle, Any], Any]


def handle_of(proxy: Any) -> Handle:
    handle: Handle = object.__getattribute__(proxy, HANDLE)
    return handle


class Replaced(NamedTuple):
    """A function or class that a rule has replaced by a stub in this program.

    The acceptor has it under the same name.
    """

    name: tuple[str, str]  # module, qualified name
    value: Any  # keeps the value alive, because it is looked up by its id


@dataclass(slots=True)
class Packed:
    """A value as a message: the header, whose "v" is the number of buffers with the pickle, and the buffers."""

    header: dict[str, Any]
    buffers: list[Buffer]
    hold: int = 0  # number of the pages that the receiver may ask for until `Codec.sent`; 0: none
    counted: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)


class Codec:
    """Writes and reads the values of one session at one end. Thread-safe.

    >>> packed = Codec(client=True).dumps({"loss": 0.25})
    >>> Codec(client=False).loads(packed.header, packed.buffers)
    {'loss': 0.25}
    """

    def __init__(
        self,
        *,
        client: bool,
        packages: Iterable[str] = (),
        trusted: bool = True,
        remembered: int = pages.REMEMBERED,
    ) -> None:
        self.client = client
        self.exports = Table(1 if client else ACCEPTORS, "this program" if client else "the acceptor")
        self.held = Held()
        self.residents = Residents(self.exports.mint, self.held.dead)
        self.outgoing = pages.Outgoing()
        self.cache = pages.Cache(remembered)
        self.ledger = pages.Ledger(remembered)
        # For the encoder: reducers by exact type, and values that rules have replaced, by id.
        self.reducers: dict[type, encoding.Reducer] = {}
        self.replaced: dict[int, Replaced] = {}
        # Weak, because classes of notebooks and functions may be collected; then no answer can refer to them.
        self.sent_types: weakref.WeakSet[type] = weakref.WeakSet()
        # Returns the plan of a stub, which has `name` and `function`; None for any other value.
        self.stands_for: Callable[[Any], Any] = lambda _value: None
        # Returns the class for an instance that is read here.
        self.plain: Callable[[Any], Any] = lambda value: value
        # Patterns of classes whose instances stay in the acceptor.
        self.resident: tuple[str, ...] = ()
        # Functions that make the proxy for an object of the other end, by the object's kind.
        self.proxies: dict[str, MakeProxy] = {}
        self.named: Callable[[str, str], Any] = _no_names
        # Asks the sender of message `hold` for pages by name.
        self.fetch: Callable[[int, list[str]], Sequence[Buffer]] = _no_pages
        self._trusted = trusted
        self._policy = restricted.Policy(self.sent_types, packages, self._plain)
        self._numbers = itertools.count(1)
        self._numbered: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._by_number: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        self._contextual: dict[str, Callable[..., Any]] = {"own": self.exports.get, "foreign": self._foreign}
        if client:
            self._contextual["came"] = self._came_back
        else:
            self._contextual.update(made=self._made, kept=self._keep, named=self._named)

    # Writing

    def dumps(self, value: Any, *, inside: Sequence[Any] = (), paged: bool = False) -> Packed:
        """Returns the message for a value.

        Objects in `inside` are sent by value, even if the other end has handles to them. `paged`: large buffers are
        sent as pages, which the receiver may ask for until `sent`.

        Raises CrossingError with the path to the part that cannot be sent.
        """
        writer = Encoder(self, inside)
        try:
            writer.dump(value)
        except Exception as error:
            self.exports.release((ident, 1) for ident in writer.sent)
            self.residents.forget(writer.kept)
            if not locate.is_pickling(error):
                raise
            raise locate.find(value, error, self._crosses) from error
        pieces: list[Buffer] = _joined(writer.pieces)
        stream = len(pieces)
        pieces += [buffer.raw() for buffer in writer.buffers]
        if paged and self.client and any(len(piece) >= pages.FLOOR for piece in pieces):
            packed = self._paged(stream, pieces)
        else:
            packed = Packed({"v": stream}, pieces)
        packed.counted = writer.sent
        packed.kept = writer.kept
        if not packed.hold and (size := sum(map(len, pieces))) > pages.LARGEST:
            self.unsent(packed)
            raise CrossingError(
                f"a {type(value).__qualname__} of {size} bytes is more than is sent at once ({pages.LARGEST}): return "
                "it in parts, as a generator's values, write it to a file, or let it stay there with `returns: ref`"
            )
        gone = self.held.gone()
        if gone:
            packed.header["free"] = gone
        return packed

    def _paged(self, stream: int, pieces: list[Buffer]) -> Packed:
        layout: dict[str, list[tuple[str, int, bool]]] = {}
        buffers: list[Buffer] = []
        kept: dict[str, memoryview] = {}
        carried = 0
        for index, piece in enumerate(pieces):
            if len(piece) < pages.FLOOR:
                buffers.append(piece)
                continue
            listed = layout[str(index)] = []
            for segment in pages.segments(piece):
                # Copied, because another thread may change the data after its name was computed.
                data = bytes(segment)
                name = pages.name_of(data)
                size = len(data)
                carry = not self.ledger.known(name, size) and carried + size <= pages.CARRIED
                if carry:
                    carried += size
                    buffers.append(data)
                kept[name] = segment
                listed.append((name, size, carry))
        hold = self.outgoing.hold(kept)
        return Packed({"v": stream, "pages": layout, "hold": hold}, buffers, hold)

    def sent(self, packed: Packed) -> None:
        """Releases the pages of a message after the answer: the other end will not ask for them any more."""
        if packed.hold:
            self.outgoing.release(packed.hold)

    def unsent(self, packed: Packed) -> None:
        """Reverts the counts of a message that was not sent."""
        self.sent(packed)
        self.exports.release((ident, 1) for ident in packed.counted)
        self.residents.forget(packed.kept)

    def _crosses(self, value: Any) -> Exception | None:
        writer = Encoder(self)
        try:
            writer.dump(value)
        except Exception as error:
            return error
        finally:
            self.exports.release((ident, 1) for ident in writer.sent)
            self.residents.forget(writer.kept)
        return None

    def identify(self, value: Any) -> int:
        """Returns the number of a function or class that is sent by value."""
        with self._lock:
            number = self._numbered.get(value)
            if number is None:
                number = self._numbered[value] = next(self._numbers)
                self._by_number[number] = value
                if isinstance(value, type):
                    self.sent_types.add(self.plain(value))
            return number

    def resides(self, kind: type) -> bool:
        """Returns whether a rule keeps instances of this class in the acceptor."""
        return any(
            fnmatchcase(f"{base.__module__}.{base.__qualname__}", pattern)
            for pattern in self.resident
            for base in kind.__mro__
        )

    def came_as(self, value: Any) -> int | None:
        return self._numbered.get(value)

    # Reading

    def loads(self, header: dict[str, Any], buffers: Sequence[Buffer]) -> Any:
        """Returns the value of a message.

        Raises RefusedError for a value that is not accepted from the other end, UnknownObjectError for an unknown
        handle.
        """
        gone = header.get("free")
        if gone:
            self.exports.release((int(ident), int(count)) for ident, count in gone)
        stream = header["v"]
        pieces = self._pieces(header, buffers) if "pages" in header else buffers
        if type(stream) is not int or not 0 < stream <= len(pieces):
            raise RefusedError("the other end's message has no value: run the same version on both ends")
        first = pieces[0] if stream == 1 else b"".join(pieces[:stream])
        beside = pieces[stream:]
        if self._trusted:
            return _Trusting(BytesIO(first), buffers=beside, contextual=self._contextual, plain=self.plain).load()
        return restricted.loads(bytes(first), beside, self._policy, self._contextual)

    def _pieces(self, header: dict[str, Any], buffers: Sequence[Buffer]) -> list[Buffer]:
        """Returns the pieces of a message with pages.

        Pages come from the message, from the cache, or from the sender.
        """
        if self.client:
            raise RefusedError("the acceptor's answer refers to pages, which only a client sends")
        given = iter(buffers)
        layout: dict[int, Any] = {int(index): listed for index, listed in header["pages"].items()}
        carried = sum(1 for listed in layout.values() for _, _, inline in listed if inline)
        found: dict[str, Buffer] = {}
        lacking: dict[str, int] = {}
        pieces: list[Buffer] = []
        for index in range(len(buffers) - carried + len(layout)):
            if index not in layout:
                pieces.append(next(given))
                continue
            pieces.append(b"")
            for name, size, inline in layout[index]:
                page = next(given) if inline else found.get(name) or self.cache.get(name)
                if page is None:
                    lacking[name] = size
                    continue
                found[name] = page
                if inline:
                    lacking.pop(name, None)
                    self.cache.put(name, page)
        for wanted in _batches(lacking):
            for name, page in zip(wanted, self.fetch(header["hold"], wanted), strict=True):
                found[name] = page
                self.cache.put(name, page)
        for index, listed in layout.items():
            pieces[index] = _assembled([found[name] for name, _, _ in listed], sum(size for _, size, _ in listed))
        return pieces

    def _foreign(self, ident: int, kind: str, info: Any, count: int = 1) -> Any:
        make = self.proxies.get(kind)
        if make is None:
            raise RefusedError(f"the other end sent a handle of the unknown kind {kind!r}")
        if not isinstance(ident, int) or not 0 < ident < 1 << 64:
            raise RefusedError(f"the other end sent the handle {ident!r}, which is no id")
        return self.held.receive(
            Handle(ident, kind, self.held.dead, count), lambda handle: make(handle, info), handle_of
        )

    def _made(self, ident: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        value = function(*arguments)
        self._numbered[value] = ident
        return value

    def _keep(self, ident: int, value: Any) -> Any:
        self.exports.place(ident, value, "object")
        return value

    def _plain(self, value: Any) -> Any:
        return self.plain(value)

    def _named(self, module: str, name: str) -> Any:
        return self.named(module, name)

    def _came_back(self, ident: int) -> Any:
        value = self._by_number.get(ident) if isinstance(ident, int) else None
        if value is None:
            raise UnknownObjectError(f"the acceptor named function or class {ident!r}, which this program has not sent")
        return self.plain(value)

    # After a move

    def forget(self) -> None:
        """Forgets which pages were sent, because a new acceptor has none of them."""
        self.ledger.clear()


def _joined(written: list[bytes | bytearray]) -> list[Buffer]:
    """Returns the pickle's pieces with small neighbours joined. Large pieces are not copied."""
    if len(written) == 1:
        return [written[0]]
    joined: list[Buffer] = []
    small: list[bytes | bytearray] = []
    for piece in written:
        if len(piece) < pages.FLOOR:
            small.append(piece)
            continue
        if small:
            joined.append(b"".join(small))
            small = []
        joined.append(piece)
    if small:
        joined.append(b"".join(small))
    return joined


def _batches(lacking: dict[str, int]) -> Iterable[list[str]]:
    batch: list[str] = []
    size = 0
    for name, length in lacking.items():
        if batch and size + length > pages.CARRIED:
            yield batch
            batch, size = [], 0
        batch.append(name)
        size += length
    if batch:
        yield batch


def _assembled(parts: list[Buffer], size: int) -> bytearray:
    """Returns a new buffer with the pages' content, so that the pages in the cache stay unchanged."""
    if len(parts) == 1 and len(parts[0]) == size:
        return bytearray(parts[0])
    whole = bytearray(size)
    at = 0
    for part in parts:
        whole[at : at + len(part)] = part
        at += len(part)
    if at != size or len(whole) != size:
        raise ValueError("a page has another length than its message says: both ends must run the same version")
    return whole


def _no_pages(_hold: int, names: list[str]) -> Sequence[Buffer]:
    raise LookupError(f"{len(names)} pages are not here")


def _no_names(module: str, name: str) -> Any:
    raise LookupError(f"{module}.{name}")


class _Trusting(pickle.Unpickler):
    """The unrestricted unpickler, in which the names of `vocabulary` have this session's meaning."""

    def __init__(
        self, stream: BytesIO, *, buffers: Sequence[Buffer], contextual: dict[str, Any], plain: Callable[[Any], Any]
    ) -> None:
        super().__init__(stream, buffers=buffers)
        self._plain = plain
        self._contextual = contextual

    def find_class(self, module: str, name: str) -> Any:
        if module == vocabulary.__name__:
            return self._contextual[name]
        return self._plain(super().find_class(module, name))
