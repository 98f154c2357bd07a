"""The torch device's part of a moving session: moves storages, generators and the next batch number to another
acceptor.

The program keeps its tensors, because storages keep their addresses. Batches that were sent after the state was saved
are repeated from the journal, so that a new acceptor can also replace a lost one.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

from remotegpu_offload.torch.codec import (
    ALLOCATE,
    ALLOCATE_ENTRY,
    BATCH,
    PUT,
    PUT_ENTRY,
    RESIZE,
    RESIZE_ENTRY,
    SHIFT,
)
from remotegpu_offload.torch.device import Remote
from remotegpu_offload.torch.errors import checked
from remotegpu_offload.torch.stream.journal import Journal
from remotegpu_offload.wire.errors import LostError
from remotegpu_offload.wire.frames import Buffer, Service
from remotegpu_offload.wire.peer import Peer

TOGETHER: Final = 64 << 20
"""So many bytes travel in one message."""


@dataclass(frozen=True, slots=True)
class _Storage:
    """A storage's content in pieces, and its addresses: more than one after the storage was resized."""

    addresses: tuple[int, ...]
    nbytes: int
    pieces: tuple[Buffer, ...]


@dataclass(frozen=True, slots=True)
class State:
    """The complete state of the device in an acceptor. `number` is the first batch that the state does not contain."""

    number: int
    backend: str
    templates: tuple[bytes, ...]
    storages: tuple[_Storage, ...]
    failed: list[Any]
    generators: tuple[tuple[int, int, Buffer], ...]
    threads: int


class TorchPart:
    """The torch device as a part for `Session.register`."""

    name = "torch"

    def __init__(self, remote: Remote, *, keeps: bool) -> None:
        self._remote = remote
        self._stream = remote.stream
        self._kept_from = 0
        if keeps:
            self._stream.journal = Journal()

    def holding(self) -> AbstractContextManager[None]:
        """Returns a context manager; inside it only the calling thread sends operations."""
        return self._stream.holding()

    def save(self, peer: Peer) -> State:  # noqa: ARG002 - the stream knows the peer
        """Fetches the acceptor's state into this process's memory."""
        reply = checked(self._stream.ask("index"))
        found = reply.header
        storages = list(_pieces(found["storages"], self._fetch))
        pairs = zip(found["generators"], reply.buffers, strict=True)
        generators = tuple((int(number), int(seed), content) for (number, seed), content in pairs)
        state = State(
            self._stream.batches,
            str(found["backend"]),
            tuple(self._remote.engine.known),
            tuple(storages),
            found["failed"],
            generators,
            int(found["threads"]),
        )
        if self._stream.journal is not None:
            # If saving fails, the session is resumed from the previous state.
            self._stream.journal.forget_before(self._kept_from)
            self._kept_from = state.number
        return state

    def load(self, peer: Peer, state: object) -> None:
        """Sends the state, and the batches after it, to another acceptor.

        Raises LostError if more was sent since the state was saved than the journal keeps.
        """
        assert isinstance(state, State)
        journal = self._stream.journal
        if journal is not None and journal.complete_from > state.number:
            raise LostError(
                "the acceptor is gone, and more was sent since its state was last kept than is remembered; take "
                "snapshots more often (`snapshots:` under `session` in remotegpu.yaml), and start the program again"
            )
        loader = _Loader(peer)
        backend = checked(peer.request(Service.TORCH, {"op": "hello"})).header["backend"]
        loader.entries.extend(state.templates)
        for storage in state.storages:
            loader.storage(storage)
        loader.send({"then": "fail", "failed": state.failed})
        same = {"cuda": "cuda", "rocm": "cuda"}.get(str(backend), str(backend)) == state.backend
        if not same:
            warnings.warn(
                f"from {state.backend} to {backend}: random numbers begin anew from their seeds, as they differ",
                RuntimeWarning,
                stacklevel=2,
            )
        for number, seed, content in state.generators:
            if same:
                loader.send({"then": "rng_set", "generator": number, "own": 1}, (content,))
            else:
                loader.send({"then": "seed", "generator": number, "seed": seed})
        if same:
            loader.send({"then": "threads", "count": state.threads})
        loader.finish()
        peer.request(Service.TORCH, {"op": "begin", "number": state.number})
        for sent in list(journal.sent) if journal is not None else ():
            if sent.number >= state.number:
                peer.notify(Service.TORCH, sent.header, sent.buffers)

    def _fetch(self, wanted: list[tuple[int, int]]) -> list[Buffer]:
        # Entries that other threads have appended since the index was made belong to a later batch.
        return list(checked(self._stream.ask("get_many", {"pieces": wanted}, alone=True)).buffers)


def _pieces(index: list[Any], fetch: Callable[[list[tuple[int, int]]], list[Buffer]]) -> Iterator[_Storage]:
    """Yields storages with their content, fetched in messages of bounded size."""
    waiting: list[tuple[tuple[int, ...], int]] = []
    total = 0

    def fetched() -> Iterator[_Storage]:
        contents = fetch([(addresses[0], size) for addresses, size in waiting]) if waiting else []
        for (addresses, size), content in zip(waiting, contents, strict=True):
            yield _Storage(addresses, size, (content,))

    for slots, size in index:
        addresses = tuple(int(slot) << SHIFT for slot in slots)
        if size > TOGETHER:
            begins = range(0, size, TOGETHER)
            pieces = [fetch([(addresses[0] + at, min(TOGETHER, size - at))])[0] for at in begins]
            yield _Storage(addresses, size, tuple(pieces))
            continue
        if total + size > TOGETHER:
            yield from fetched()
            waiting, total = [], 0
        waiting.append((addresses, size))
        total += size
    yield from fetched()


class _Loader:
    """Sends batches to a new acceptor."""

    def __init__(self, peer: Peer) -> None:
        self.entries: list[bytes] = []
        self._peer = peer
        self._buffers: list[Buffer] = []
        self._bytes = 0
        self._number = 0

    def storage(self, storage: _Storage) -> None:
        first, *others = storage.addresses
        self.entries.append(ALLOCATE_ENTRY.pack(ALLOCATE, first, storage.nbytes))
        at = 0
        for piece in storage.pieces:
            self.entries.append(PUT_ENTRY.pack(PUT, first + at, len(piece)))
            self._buffers.append(piece)
            self._bytes += len(piece)
            at += len(piece)
            if self._bytes >= TOGETHER:
                self.send({})
        self.entries.extend(RESIZE_ENTRY.pack(RESIZE, first, other, storage.nbytes) for other in others)

    def send(self, header: dict[str, Any], own: tuple[Buffer, ...] = ()) -> None:
        buffers, body = self._batch()
        self._peer.notify(Service.TORCH, {"op": "run", **header}, [body, *buffers, *own])

    def finish(self) -> None:
        """Waits until the acceptor has executed all batches. Raises the first error."""
        buffers, body = self._batch()
        checked(self._peer.request(Service.TORCH, {"op": "run", "then": "sync"}, [body, *buffers]))

    def _batch(self) -> tuple[list[Buffer], bytes]:
        body = BATCH.pack(self._number) + b"".join(self.entries)
        buffers, self._buffers, self.entries = self._buffers, [], []
        self._number += 1
        self._bytes = 0
        return buffers, body


def join(remote: Remote) -> None:
    """Makes the device a part of its session, if the connection's source is a session."""
    register = getattr(remote.source, "register", None)
    if register is None:
        return
    keeps = bool(getattr(remote.source, "keeps", False))
    register(TorchPart(remote, keeps=keeps))
    if keeps:
        # Saves a first state at once, so that the session can always be resumed.
        with contextlib.suppress(LostError):
            remote.source.snapshot()  # type: ignore[attr-defined] # a session
