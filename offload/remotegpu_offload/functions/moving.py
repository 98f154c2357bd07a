"""Moves the objects of an acceptor to another one: the halves of both ends."""

import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from remotegpu_offload.functions.proxies import Proxy
from remotegpu_offload.objects import locate, vocabulary
from remotegpu_offload.objects.codec import Codec, handle_of
from remotegpu_offload.objects.encoder import Encoder
from remotegpu_offload.objects.pages import Buffer
from remotegpu_offload.wire.errors import LostError, OffloadError
from remotegpu_offload.wire.frames import Message, Service
from remotegpu_offload.wire.peer import Peer

if TYPE_CHECKING:
    from remotegpu_offload.functions.client import Client

PIECE: Final = 256 << 20
"""The most of an object's state in one message, in bytes."""


class _Mover(Encoder):
    """Pickles objects without replacing them by handles, for the acceptor that replaces this one."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Proxy):
            handle = handle_of(value)
            return vocabulary.foreign, (handle.ident, handle.kind, value.info, handle.count)
        reduced = self.dynamic(value)
        if isinstance(reduced, tuple) and isinstance(value, type | types.FunctionType):
            ident = self.codec.came_as(value)
            if ident is not None:
                function, arguments, *rest = reduced
                return vocabulary.made, (ident, function, arguments), *rest
        return reduced


class Store:
    """The acceptor's half: saves and loads its objects."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._pieces: list[memoryview] = []
        self._coming: list[bytearray] = []

    def answer(self, header: dict[str, Any], buffers: Sequence[Buffer]) -> Message:
        """Executes the operations `save`, `piece`, `begin`, `more` and `take` of Service.OBJECTS."""
        match header["op"]:
            case "save":
                return Message(self._save())
            case "piece":
                start = int(header["start"])
                return Message({}, [self._pieces[int(header["index"])][start : start + PIECE]])
            case "begin":
                self._coming = [bytearray(int(size)) for size in header["sizes"]]
            case "more":
                start = int(header["start"])
                self._coming[int(header["index"])][start : start + len(buffers[0])] = buffers[0]
            case "take":
                entries = self._codec.loads({"v": header["stream"]}, self._coming)
                self._codec.exports.restore(entries)
                self._coming = []
        return Message({})

    def _save(self) -> dict[str, Any]:
        entries = self._codec.exports.items()
        writer = _Mover(self._codec)
        try:
            writer.dump(entries)
        except Exception as error:
            if not locate.is_pickling(error):
                raise
            found = locate.find([value for *_, value in entries], error, self._crosses)
            raise OffloadError(f"what lives at the acceptor cannot move: {found}") from error
        stream = b"".join(writer.pieces)
        self._pieces = [memoryview(stream), *(buffer.raw() for buffer in writer.buffers)]
        return {"sizes": [len(piece) for piece in self._pieces], "free": self._codec.held.gone()}

    def _crosses(self, value: Any) -> Exception | None:
        try:
            _Mover(self._codec).dump(value)
        except Exception as error:
            return error
        return None


@dataclass(frozen=True, slots=True)
class State:
    """The saved objects of an acceptor. The client stores them without reading them."""

    pieces: tuple[bytes, ...]


class ObjectsPart:
    """The client's half: the session part that moves objects."""

    name = "objects"

    def __init__(self, client: "Client") -> None:
        self._client = client

    def save(self, peer: Peer) -> State:
        """Fetches the state of the acceptor's objects.

        Raises RemoteFailure if an object cannot move.
        """
        header = peer.request(Service.OBJECTS, {"op": "save"}).header
        self._client.codec.exports.release((int(ident), int(count)) for ident, count in header["free"])
        return State(tuple(self._piece(peer, index, int(size)) for index, size in enumerate(header["sizes"])))

    def _piece(self, peer: Peer, index: int, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            asked = {"op": "piece", "index": index, "start": len(found)}
            part = peer.request(Service.OBJECTS, asked).buffers[0]
            if not len(part):
                raise OffloadError("the acceptor said less of its objects than it announced: it stays where it is")
            found += part
        return bytes(found)

    def load(self, peer: Peer, state: object) -> None:
        """Sends the saved objects to another acceptor.

        Raises LostError if no state was saved although objects existed.
        """
        codec = self._client.codec
        if isinstance(state, State):
            peer.request(Service.OBJECTS, {"op": "begin", "sizes": [len(piece) for piece in state.pieces]})
            for index, piece in enumerate(state.pieces):
                for start in range(0, len(piece), PIECE):
                    part = memoryview(piece)[start : start + PIECE]
                    peer.request(Service.OBJECTS, {"op": "more", "index": index, "start": start}, [part])
            peer.request(Service.OBJECTS, {"op": "take", "stream": 1})
        elif len(codec.held) or len(codec.residents):
            raise LostError(
                f"the acceptor is gone, and with it {len(codec.held) + len(codec.residents)} objects that lived there; "
                "set `snapshots: 30s` under `session` in remotegpu.yaml, and start the program again"
            )
        codec.forget()
        self._client.begin_anew()
