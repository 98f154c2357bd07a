"""Remote tensors: real torch tensors on storages at artificial addresses, which this process never reads.

An address contains the storage's slot and the offset in it, so an operation only has to send `Tensor.data_ptr()`. A
slot is reused after its storage is freed: the client appends FREE to the stream of operations, and the next use of the
slot comes later in the same stream.
"""

import ctypes
import itertools
import struct
import weakref
from collections.abc import Callable
from typing import Any, Final

import torch

from remotegpu_offload.torch.codec import FIRST_THERE, FLOOR, FREE, FREE_ENTRY, SHIFT, Meta

LARGEST: Final = 1 << SHIFT
"""No storage holds more bytes: 1 TiB."""

# The range of slots in a 64-bit pointer, without the addresses of this process and those of the acceptor.
_FIRST: Final = FLOOR >> SHIFT
_LAST: Final = FIRST_THERE

# DLPack's numbers of types. Tensors of other types are made in a slower way.
_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6
_DLPACK: Final = {
    torch.int8: _INT,
    torch.int16: _INT,
    torch.int32: _INT,
    torch.int64: _INT,
    torch.uint8: _UINT,
    torch.uint16: _UINT,
    torch.uint32: _UINT,
    torch.uint64: _UINT,
    torch.float16: _FLOAT,
    torch.float32: _FLOAT,
    torch.float64: _FLOAT,
    torch.bfloat16: _BFLOAT,
    torch.complex64: _COMPLEX,
    torch.complex128: _COMPLEX,
    torch.bool: _BOOL,
}
_EXTENSION_DEVICE: Final = 12  # kDLExtDev, which is PrivateUse1 in torch

_HOST_KEY: Final = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_set_source: Final = torch.ops.aten.set_.source_Storage_storage_offset
_construct: Final = torch._C._construct_storage_from_data_pointer
_from_dlpack: Final = torch._C._from_dlpack
_create_empty: Final = torch._C._acc.create_empty_tensor
_storage_of: Final = torch.Tensor.untyped_storage
_new_capsule: Final = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)

# Kept alive permanently: each tensor reads its blueprint's structure when it is freed, perhaps after the blueprint.
_LENT: Final[list[Any]] = []


def check_size(nbytes: int) -> None:
    """Raises torch.OutOfMemoryError for more than 1 TiB, like a device that is out of memory."""
    if nbytes > LARGEST:
        raise torch.OutOfMemoryError(
            f"a tensor of {nbytes} bytes: out of memory, on the remote device none is larger than {LARGEST} bytes "
            "(1 TiB). Make it smaller, or a smaller batch"
        )


Slot = tuple[int, Callable[[Any], None]]
"""The address of the first byte, and what to call when the storage is gone."""


class Storages:
    """All storages of this process.

    `append` adds an entry to the stream; the garbage collector may call it at any time.
    """

    def __init__(self, device: torch.device, append: Callable[[bytes], None]) -> None:
        self.device = device
        self.append = append
        self._free: list[Slot] = []
        # Atomic, because several threads take slots.
        self._next = itertools.count(_FIRST)
        # Keeps the weak references alive, so that their callbacks run.
        self._watched: dict[int, weakref.ref[Any]] = {}

    def __len__(self) -> int:
        """Returns the number of existing storages."""
        return len(self._watched)

    def sizes(self) -> dict[int, int]:
        """Returns the sizes in bytes of all storages, by address."""
        found = {address: watch() for address, watch in list(self._watched.items())}
        return {address: storage.nbytes() for address, storage in found.items() if storage is not None}

    def take(self) -> Slot:
        """Returns a free slot. Raises MemoryError when 4 million storages are in use."""
        try:
            return self._free.pop()
        except IndexError:
            return self._mint()

    def give_back(self, slot: Slot) -> None:
        """Returns a slot that was taken and not used."""
        self._free.append(slot)

    def make(self, slot: Slot, nbytes: int) -> Any:
        """Makes a storage of that many bytes at a slot. Raises torch.OutOfMemoryError for more than 1 TiB."""
        check_size(nbytes)
        storage = _construct(slot[0], self.device, nbytes)
        self._watched[slot[0]] = weakref.ref(storage, slot[1])
        return storage

    def adopt(self, address: int, nbytes: int) -> Any:
        """Makes a storage whose address the acceptor has chosen."""
        entry, append, watched = FREE_ENTRY.pack(FREE, address), self.append, self._watched

        def gone(_: Any) -> None:
            del watched[address]
            append(entry)

        return self.make((address, gone), nbytes)

    def tensor(self, storage: Any, meta: Meta, offset: int = 0) -> Any:
        """Makes a tensor on a storage; `offset` is in elements."""
        made = _create_empty((0,), meta.dtype)
        _set_source.redispatch(_HOST_KEY, made, storage, offset, meta.size, meta.stride)
        return made

    def _mint(self) -> Slot:
        slot = next(self._next)
        if slot >= _LAST:
            raise MemoryError(f"more than {_LAST - _FIRST} storages are in use on the remote device")
        address = slot << SHIFT
        # The callback and its entry are made once for each slot, so that freeing a storage is fast.
        entry, append, free, watched = FREE_ENTRY.pack(FREE, address), self.append, self._free, self._watched

        def gone(_: Any) -> None:
            del watched[address]
            append(entry)
            free.append(made)

        made = (address, gone)
        return made


class Blueprint:
    """Makes tensors of one description, each on a new storage, in 3 us: fills the address into a DLPack structure."""

    __slots__ = ("_buffer", "_kept", "_location", "_storages", "_watched", "meta", "nbytes")

    def __init__(self, storages: Storages, meta: Meta) -> None:
        self.meta = meta
        self.nbytes = meta.nbytes
        check_size(self.nbytes)
        self._storages = storages
        self._watched = storages._watched
        kind = _DLPACK.get(meta.dtype)
        self._location = 0
        if kind is None:
            return
        count = len(meta.size)
        numbers = (ctypes.c_int64 * (2 * count + 1))(*meta.size, *meta.stride)
        where = ctypes.addressof(numbers)
        # DLManagedTensor: data, device (type, index), dimensions, type (code, bits, vector length), shape, strides,
        # offset; context, deleter.
        self._buffer = ctypes.create_string_buffer(
            struct.pack(
                "<QiiiBBHQQQQQ",
                0,
                _EXTENSION_DEVICE,
                0,
                count,
                kind,
                meta.dtype.itemsize * 8,
                1,
                where,
                where + 8 * count,
                0,
                0,
                0,
            ),
        )
        self._kept = numbers
        self._location = ctypes.addressof(self._buffer)
        _LENT.append((self._buffer, numbers))

    def build(self, slot: Slot) -> Any:
        """Makes a tensor on a new storage at a slot."""
        address = slot[0]
        if not self._location:
            return self._storages.tensor(self._storages.make(slot, self.nbytes), self.meta)
        while True:
            capsule = _new_capsule(self._location, b"dltensor", None)
            _fill(self._buffer, 0, address)
            made = _from_dlpack(capsule)
            storage = _storage_of(made)
            # Another thread may have filled in its own address in the meantime.
            if storage.data_ptr() == address:
                self._watched[address] = weakref.ref(storage, slot[1])
                return made


_fill: Final = struct.Struct("<Q").pack_into


def address_of(tensor: Any) -> int:
    """Returns the remote address of a tensor's first element; 0 for a local tensor.

    A tensor without elements has the address of its storage.
    """
    address: int = tensor.data_ptr()
    if not address:
        address = _storage_of(tensor).data_ptr()
    return address if address >= FLOOR else 0


def meta_of(tensor: Any) -> Meta:
    """Returns a tensor's description."""
    return Meta(
        tensor.dtype,
        tuple(tensor.shape),
        tensor.stride(),
        tensor.dtype.is_complex and tensor.is_conj(),
        tensor.is_neg(),
    )
