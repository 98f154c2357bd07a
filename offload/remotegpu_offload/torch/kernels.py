"""Kernels that the client runs itself or that need special treatment.

They handle empty tensors, views, copies between the two ends, numbers and memory.
"""

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from remotegpu_offload.torch.codec import ALLOCATE, ALLOCATE_ENTRY, PAGE, PUT, PUT_ENTRY, Meta
from remotegpu_offload.torch.dispatch import Engine, contiguous
from remotegpu_offload.torch.errors import checked
from remotegpu_offload.torch.storage import address_of, meta_of

_HOST_KEY: Final = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_ops: Final = torch.ops.aten

LOCAL: Final = (
    "as_strided",
    "view",
    "_reshape_alias",
    "unfold",
    "view_as_real",
    "view_as_complex",
    "set_.source_Storage",
    "set_.source_Storage_storage_offset",
    "set_.source_Tensor",
)
"""They only give a storage another view, for which the host's kernels do: nothing is sent."""

OWN: Final = frozenset(
    (
        *LOCAL,
        "empty.memory_format",
        "empty_strided",
        "_efficientzerotensor",
        "tril_indices",
        "triu_indices",
        "resize_",
        "set_",
        "copy_",
        "_to_copy",
        "_local_scalar_dense",
        "_pack_padded_sequence",
    )
)
"""Operations with a kernel of their own below."""


@functools.lru_cache(4096)
def dense(size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Returns whether the elements fill one range of memory without gaps or overlap, in any order of dimensions."""
    step = 1
    for length, count in sorted((s, n) for s, n in zip(stride, size, strict=True) if n != 1):
        if length != step:
            return False
        step *= count
    return True


class Transfers:
    """Copies data between local memory and storages in the acceptor."""

    def __init__(self, engine: Engine, copy: Callable[..., Any]) -> None:
        self._engine = engine
        self._copy = copy

    def allocate(self, meta: Meta) -> Any:
        """Allocates an uninitialised remote tensor."""
        engine = self._engine
        slot = engine.storages.take()
        blueprint = engine.blueprint(meta)
        engine.stream.append(ALLOCATE_ENTRY.pack(ALLOCATE, slot[0], blueprint.nbytes))
        made = blueprint.build(slot)
        engine.sent()
        return made

    def upload(self, tensor: Any) -> Any:
        """Returns a remote copy of a local tensor, with the same layout if the tensor is dense."""
        tensor = tensor.detach().resolve_conj().resolve_neg()
        if not dense(tuple(tensor.shape), tensor.stride()):
            tensor = tensor.contiguous()
        made = self.allocate(meta_of(tensor))
        self._put(made, tensor)
        return made

    def write(self, tensor: Any, source: Any) -> None:
        """Copies a local tensor into a remote one."""
        if source.dtype.itemsize > tensor.dtype.itemsize:
            source = source.to(tensor.dtype)
        source = source.detach().resolve_conj().resolve_neg()
        meta = meta_of(tensor)
        if tuple(source.shape) != meta.size or source.dtype is not meta.dtype or meta.conj or meta.neg:
            self._copy(tensor, self.upload(source))
        elif dense(meta.size, meta.stride):
            if source.stride() != meta.stride:
                source = torch.empty_strided(meta.size, meta.stride, dtype=meta.dtype).copy_(source)
            self._put(tensor, source)
        else:
            self._copy(tensor, self.upload(source))

    def download(self, tensor: Any) -> Any:
        """Returns a local copy of a remote tensor, with the same layout if the tensor is dense.

        Waits for the acceptor.
        """
        meta = meta_of(tensor)
        if meta.conj or meta.neg or not dense(meta.size, meta.stride):
            tensor = _ops.clone.default(tensor, memory_format=torch.contiguous_format)
            meta = meta_of(tensor)
        made = torch.empty_strided(meta.size, meta.stride, dtype=meta.dtype, device="cpu")
        count = made.numel() * meta.dtype.itemsize
        address, target = address_of(tensor), _memory(made, count)
        for begin in range(0, count, PAGE):
            size = min(PAGE, count - begin)
            target[begin : begin + size] = self.fetch(address + begin, size)
        return made

    def fetch(self, address: int, count: int) -> Any:
        """Fetches `count` bytes of a storage, at most a page. Waits for the acceptor."""
        reply = checked(self._engine.stream.ask("get", {"address": address, "bytes": count}))
        return memoryview(reply.buffers[0])

    def number(self, tensor: Any) -> Any:
        """Returns the only element of a tensor as a number. Waits for the acceptor."""
        if tensor.is_conj() or tensor.is_neg():
            tensor = _ops.clone.default(tensor)
        data = bytearray(self.fetch(address_of(tensor), tensor.dtype.itemsize))
        return torch.frombuffer(data, dtype=tensor.dtype).item()

    def _put(self, tensor: Any, source: Any) -> None:
        count = source.numel() * source.dtype.itemsize
        address, data = address_of(tensor), _memory(source, count)
        for begin in range(0, count, PAGE):
            size = min(PAGE, count - begin)
            entry = PUT_ENTRY.pack(PUT, address + begin, size)
            self._engine.stream.put(entry, data[begin : begin + size], snapshot=True)
        if self._engine.stream.idle:
            self._engine.stream.flush()


def _memory(tensor: Any, count: int) -> memoryview:
    """Returns the bytes of a dense local tensor. The memoryview keeps the tensor alive."""
    if not count:
        return memoryview(b"")
    found = (ctypes.c_char * count).from_address(tensor.data_ptr())
    setattr(found, "tensor", tensor)  # noqa: B010 - the type has no such attribute for the type checker
    return memoryview(found).cast("B")


def local(operation: Any) -> Callable[..., Any]:
    """Returns the host's kernel of an operation that does not access the memory."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return operation.redispatch(_HOST_KEY, *args, **kwargs)

    return run


def factories(engine: Engine, transfers: Transfers) -> dict[str, Callable[..., Any]]:
    """Returns the kernels that make tensors without input tensors."""

    def empty(
        size: Sequence[int],
        dtype: Any = None,
        layout: Any = None,
        device: Any = None,
        pin_memory: Any = None,
        memory_format: Any = None,
    ) -> Any:
        return empty_strided(size, _strides(size, memory_format), dtype, layout, device, pin_memory)

    def empty_strided(
        size: Sequence[int],
        stride: Sequence[int],
        dtype: Any = None,
        layout: Any = None,
        device: Any = None,  # noqa: ARG001 - there is only one device
        pin_memory: Any = None,
    ) -> Any:
        if pin_memory:
            raise RuntimeError("Only dense CPU tensors can be pinned")
        if layout not in {None, torch.strided}:
            raise NotImplementedError(f"the remote device has no tensors of layout {layout}: only strided ones")
        return transfers.allocate(Meta(dtype or torch.get_default_dtype(), tuple(size), tuple(stride)))

    def zero_tensor(size: Sequence[int], **kwargs: Any) -> Any:
        return empty(size, kwargs.get("dtype")).zero_()

    def resize_(tensor: Any, size: Sequence[int], memory_format: Any = None) -> Any:
        if tuple(tensor.shape) != tuple(size) or memory_format is not None:
            engine.resize(tensor, size, _strides(size, memory_format))
        return tensor

    def set_(tensor: Any) -> Any:
        storage = engine.storages.make(slot := engine.storages.take(), 0)
        engine.stream.append(ALLOCATE_ENTRY.pack(ALLOCATE, slot[0], 0))
        return _ops.set_.source_Storage_storage_offset.redispatch(_HOST_KEY, tensor, storage, 0, (0,), (1,))

    def corner(operation: Any) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            return transfers.upload(operation(*args, dtype=kwargs.get("dtype"), device="cpu"))

        return run

    return {
        "tril_indices": corner(_ops.tril_indices.default),
        "triu_indices": corner(_ops.triu_indices.default),
        "empty.memory_format": empty,
        "empty_strided": empty_strided,
        "_efficientzerotensor": zero_tensor,
        "resize_": resize_,
        "set_": set_,
    }


def _strides(size: Sequence[int], memory_format: Any) -> tuple[int, ...]:
    if memory_format in {None, torch.contiguous_format, torch.preserve_format}:
        return contiguous(size)
    return tuple(torch.empty(tuple(size), device="meta", memory_format=memory_format).stride())


def copies(
    transfers: Transfers, copy: Callable[..., Any], convert: Callable[..., Any]
) -> dict[str, Callable[..., Any]]:
    """Returns the kernels that copy between the two ends.

    `copy` and `convert` are the kernels for two remote tensors.
    """

    def copy_(target: Any, source: Any, non_blocking: bool = False) -> Any:
        if not address_of(target):
            target.copy_(transfers.download(source))
        elif address_of(source):
            copy(target, source, non_blocking)
        else:
            transfers.write(target, source)
        return target

    def to_copy(
        tensor: Any,
        *,
        dtype: Any = None,
        layout: Any = None,
        device: Any = None,
        pin_memory: Any = None,  # noqa: ARG001 - the result is a new local copy
        non_blocking: bool = False,  # noqa: ARG001 - uploads never block, downloads always do
        memory_format: Any = None,
    ) -> Any:
        kind = (
            None
            if device is None
            else torch._C._get_privateuse1_backend_name()
            if device.type not in _LOCAL
            else device.type
        )
        remote = bool(address_of(tensor))
        if layout not in {None, torch.strided}:
            raise NotImplementedError(f"the remote device has no tensors of layout {layout}: only strided ones")
        extra = {} if memory_format is None else {"memory_format": memory_format}
        if kind == "meta":
            return torch.empty_like(_likeness(tensor), dtype=dtype, **extra)
        if not remote:
            shrinks = dtype is not None and dtype.itemsize <= tensor.dtype.itemsize
            made = transfers.upload(tensor.to(dtype=dtype if shrinks else None, **extra))
            return made if dtype in {None, made.dtype} else convert(made, dtype=dtype)
        if kind in {None, torch._C._get_privateuse1_backend_name()}:
            return convert(tensor, dtype=dtype, **extra)
        if dtype is not None and dtype.itemsize < tensor.dtype.itemsize:
            tensor = convert(tensor, dtype=dtype)
        return transfers.download(tensor).to(dtype=dtype, **extra)

    return {"copy_": copy_, "_to_copy": to_copy, "_local_scalar_dense": transfers.number}


_LOCAL: Final = frozenset(("cpu", "meta"))


def _likeness(tensor: Any) -> Any:
    meta = meta_of(tensor)
    return torch.empty_strided(meta.size, meta.stride, dtype=meta.dtype, device="meta")


def indexing(transfers: Transfers, run: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a kernel so that indices may be local tensors, as torch allows: uploads them."""

    def indexed(tensor: Any, indices: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        uploaded = [
            transfers.upload(index) if isinstance(index, torch.Tensor) and not address_of(index) else index
            for index in indices
        ]
        return run(tensor, uploaded, *args, **kwargs)

    return indexed


def packing(transfers: Transfers) -> dict[str, Callable[..., Any]]:
    """Returns the kernel that packs sequences of different lengths.

    The batch sizes stay on the host, as on every device.
    """

    def pack_padded(tensor: Any, lengths: Any, batch_first: bool) -> tuple[Any, Any]:
        # The host's kernel checks the lengths, and returns the indexes of the kept rows in their order.
        numbered = torch.arange(tensor.shape[0] * tensor.shape[1]).view(tensor.shape[:2])
        order, sizes = _ops._pack_padded_sequence.default(numbered, lengths, batch_first)
        return _ops.index_select.default(tensor.flatten(0, 1), 0, transfers.upload(order)), sizes

    return {"_pack_padded_sequence": pack_padded}


def lstm_cell(
    inputs: Any, hidden: Any, cell: Any, input_bias: Any = None, hidden_bias: Any = None
) -> tuple[Any, Any, Any]:
    """Computes torch's fused LSTM cell with plain operations.

    Composite kernels call it on every device except the CPU.
    """
    gates = inputs + hidden
    if input_bias is not None:
        gates = gates + input_bias + hidden_bias
    enter, forget, update, leave = gates.chunk(4, 1)
    carried = forget.sigmoid() * cell + enter.sigmoid() * update.tanh()
    return leave.sigmoid() * carried.tanh(), carried, gates


def gru_cell(inputs: Any, hidden: Any, state: Any, input_bias: Any = None, hidden_bias: Any = None) -> tuple[Any, Any]:
    """Computes torch's fused GRU cell with plain operations, like `lstm_cell`."""
    if input_bias is not None:
        inputs, hidden = inputs + input_bias, hidden + hidden_bias
    input_reset, input_update, input_new = inputs.chunk(3, 1)
    hidden_reset, hidden_update, hidden_new = hidden.chunk(3, 1)
    reset, update = (input_reset + hidden_reset).sigmoid(), (input_update + hidden_update).sigmoid()
    new = (input_new + reset * hidden_new).tanh()
    return (state - new) * update + new, reset


CELLS: Final = {"_thnn_fused_lstm_cell": lstm_cell, "_thnn_fused_gru_cell": gru_cell}
"""Composed here of other operations, with their gradients."""
