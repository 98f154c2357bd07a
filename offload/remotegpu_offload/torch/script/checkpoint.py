"""Checkpoints: files that open on a real GPU, written with few round trips.

torch asks a storage for its device, which tells the script's name (`cuda:0`, see `names`), and for its bytes on the
host, one storage after the other. All storages of one `torch.save` are known before the first is written, so their
bytes are fetched together.
"""

import functools
import threading
import weakref
from typing import Any, Final

import torch

from remotegpu_offload.torch import shown
from remotegpu_offload.torch.stream import link

TOGETHER: Final = 64 << 20
"""So many bytes are fetched at once, or one storage where that is larger."""

_FIRST: Final = 1
"""Priority of our entry in torch's registry of storages: before all of torch's own."""


class _Save(threading.local):
    """The `torch.save` of each thread: which storages it will write, and bytes that were fetched early."""

    active = False

    def __init__(self) -> None:
        self.named: list[weakref.ref[Any]] = []
        self.fetched: dict[int, Any] = {}


_save = _Save()


def install() -> None:
    """For good, after `names.install`."""
    original = torch.save

    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        if _save.active:
            return original(*args, **kwargs)
        _save.active = True
        try:
            return original(*args, **kwargs)
        finally:
            _save.active = False
            _save.named.clear()
            _save.fetched.clear()

    torch.save = torch.serialization.save = save
    torch.serialization.register_package(_FIRST, _tag, _restore)
    alone = torch.UntypedStorage.cpu

    @functools.wraps(alone)
    def cpu(self: Any) -> Any:
        if not _save.active or self.device.type not in shown.names():
            return alone(self)
        found = _save.fetched.pop(self.data_ptr(), None)
        if found is None:
            _fetch(self)
            found = _save.fetched.pop(self.data_ptr())
        return found

    torch.UntypedStorage.cpu = cpu


def _tag(storage: Any) -> None:
    """Called for each storage while torch writes what holds them. No tag of ours: torch's own for the script's name
    follows.
    """
    storage = getattr(storage, "_untyped_storage", storage)
    if _save.active and storage.device.type in shown.names():
        _save.named.append(weakref.ref(storage))


def _restore(_storage: Any, _location: str) -> None:
    """torch's own way for `cuda` leads to `Storage.to`, which is ours."""


def _fetch(first: Any) -> None:
    """The bytes of a storage and of those that will be asked for next."""
    wanted = {first.data_ptr(): first.nbytes()}
    total = first.nbytes()
    for storage in filter(None, [reference() for reference in _save.named]):
        address, size = storage.data_ptr(), storage.nbytes()
        if address not in wanted and address not in _save.fetched and total + size <= TOGETHER:
            wanted[address] = size
            total += size
    reply = link.ask({"op": "get_many", "pieces": list(wanted.items())})
    _save.named = [
        reference for reference in _save.named if (one := reference()) is not None and one.data_ptr() not in wanted
    ]
    for (address, size), data in zip(wanted.items(), reply.buffers, strict=True):
        held = torch.UntypedStorage(size)
        if size:
            torch.empty(0, dtype=torch.uint8).set_(held).copy_(torch.frombuffer(data, dtype=torch.uint8))
        _save.fetched[address] = held
