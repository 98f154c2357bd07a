"""Checkpoints: makes their files loadable on a real GPU, and writes them with few round trips.

torch asks each storage for its device, which answers with the script's name (`cuda:0`, see `names`), and then for its
bytes, one storage after the other. `torch.save` knows all its storages before it writes the first one, so this module
fetches their bytes together.
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
    """The state of `torch.save` in each thread: the storages that it will write, and bytes that were fetched early."""

    active = False

    def __init__(self) -> None:
        self.named: list[weakref.ref[Any]] = []
        self.fetched: dict[int, Any] = {}


_save = _Save()


def install() -> None:
    """Replaces `torch.save` and `torch.UntypedStorage.cpu` until the process ends. `names.arm` calls it once."""
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
    """Records a storage that torch will write. Returns no tag, so torch's own tag for the script's name is used."""
    storage = getattr(storage, "_untyped_storage", storage)
    if _save.active and storage.device.type in shown.names():
        _save.named.append(weakref.ref(storage))


def _restore(_storage: Any, _location: str) -> None:
    """Returns nothing: torch's own function for `cuda` then calls `Storage.to`, which is replaced."""


def _fetch(first: Any) -> None:
    """Fetches the bytes of a storage, and of those that torch will ask for next."""
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
