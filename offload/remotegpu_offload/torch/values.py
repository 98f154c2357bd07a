"""Tensors as arguments and results of functions that run in the acceptor.

A remote tensor is sent as its address: the function gets the acceptor's own tensor on the same storage, so that the
program sees its writes. A tensor on the host is sent with its content. Neither is sent with its autograd graph, which
ends at the call in both directions. The program's tensor records that a result had a graph: it requires gradients as in
a local run, and a backward pass raises an error with the reason why gradients are missing.
"""

import pickle
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch

from remotegpu_offload.objects import restricted
from remotegpu_offload.objects.encoder import Encoder, Resident, register
from remotegpu_offload.torch import codec
from remotegpu_offload.torch.acceptor.executor import Executor, FailedError, Storage, memory
from remotegpu_offload.torch.codec import Meta
from remotegpu_offload.torch.storage import address_of, meta_of

if TYPE_CHECKING:
    from remotegpu_offload.torch.device import Remote

_PARAMETER: Final = torch.nn.Parameter
# A third value for "requires gradients": the tensor has an autograd graph in the acceptor.
_HISTORY: Final = 2


class Device(Protocol):
    """The interface of the acceptor's device that this module uses."""

    executor: Executor

    def settle(self) -> None:
        """Waits until all received operations are executed."""


class _Sides:
    """The role of this process: it is an acceptor if `acceptor` is set, otherwise a program with a remote device."""

    acceptor: Device | None = None


_sides = _Sides()


def use(device: Device) -> None:
    """Makes this process an acceptor with this device."""
    _sides.acceptor = device


@restricted.allow
def dtype(name: Any) -> Any:
    return codec.from_json({"d": name})


@restricted.allow
def size(lengths: Any) -> Any:
    return torch.Size(lengths)


@restricted.allow
def flag(kind: Any, name: Any) -> Any:
    """Returns a layout or memory format."""
    return codec.from_json({kind: name})


@restricted.allow
def place(kind: Any, index: Any) -> Any:
    """Returns a device; the remote one if `kind` is None."""
    if kind is not None:
        return torch.device(str(kind)) if index is None else torch.device(str(kind), int(index))
    if _sides.acceptor is not None:
        return _sides.acceptor.executor.device
    return _remote().device


@restricted.allow
def host(data: Any, meta: Any, wants: Any, parameter: Any, gradient: Any = None) -> Any:
    """Makes a tensor on the host from its bytes."""
    described = codec.meta_from_json(meta)
    content = bytearray(memoryview(data).cast("B"))
    if len(content) != described.nbytes:
        raise ValueError("a tensor has another size than its bytes")
    if not content:
        return _dressed(torch.empty(described.size, dtype=described.dtype), wants, parameter, gradient)
    made = torch.frombuffer(content, dtype=described.dtype).as_strided(described.size, described.stride)
    return _dressed(made, wants, parameter, gradient)


def tensor_at(address: int, meta: Any, wants: bool, parameter: bool, gradient: Any = None) -> Any:
    """Returns the acceptor's tensor at an address of the client. For the acceptor.

    Raises RuntimeError if the operation that should have made the tensor has failed.
    """
    device = _sides.acceptor
    if device is None:
        raise RuntimeError("a remote tensor came to a process that has no device")
    device.settle()
    try:
        found = device.executor.tensor(address, codec.meta_from_json(meta))
    except FailedError as error:
        raise RuntimeError(error.failure.text) from None
    return _dressed(found.detach(), wants, parameter, gradient)


@restricted.allow
def named(address: Any, meta: Any, nbytes: Any, wants: Any, parameter: Any, gradient: Any = None) -> Any:
    """Makes a tensor on a storage whose address the acceptor has chosen. For the program."""
    described = codec.meta_from_json(meta)
    slot, offset = address >> codec.SHIFT, address & (1 << codec.SHIFT) - 1
    if not codec.FIRST_THERE <= slot < 1 << 63 - codec.SHIFT or offset + described.nbytes > nbytes:
        raise ValueError("not the address of a result")
    storages = _remote().storages
    storage = storages.adopt(slot << codec.SHIFT, nbytes)
    made = storages.tensor(storage, described, offset // described.dtype.itemsize)
    return _dressed(made, wants, parameter, gradient)


def tensors(value: Any) -> list[tuple[str, Any]]:
    """Returns the tensors of a module, or those that an optimizer changes, with their names; otherwise []."""
    if isinstance(value, torch.nn.Module):
        return [*value.named_parameters(), *value.named_buffers()]
    if isinstance(value, torch.optim.Optimizer):
        groups = enumerate(value.param_groups)
        return [(f"{at} {index}", held) for at, group in groups for index, held in enumerate(group["params"])]
    return []


def part(owner: Any, name: str) -> Any:
    """Returns a tensor of an object in the acceptor, by its name. For the acceptor."""
    return dict(tensors(owner))[name]


class _Elsewhere(torch.autograd.Function):  # type: ignore[misc] # torch is not typed here
    """Marks a result whose autograd graph is in the acceptor."""

    @staticmethod
    def forward(ctx: Any, _leaf: Any, tensor: Any) -> Any:
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(_ctx: Any, *_gradients: Any) -> Any:
        raise RuntimeError(
            "gradients do not come back through a call of a function or class that remotegpu.yaml names: what this "
            "tensor was computed from is at the acceptor. Name the function that does the whole step, with its "
            "backward(), or have the device there alone, with `torch: {devices: [cuda]}` and no rule for this call"
        )


def _dressed(tensor: Any, wants: Any, parameter: Any, gradient: Any) -> Any:
    if type(wants) is int and wants == _HISTORY:
        return _Elsewhere.apply(torch.empty(0, requires_grad=True), tensor)
    made = _PARAMETER(tensor, bool(wants)) if parameter else tensor.requires_grad_(bool(wants))
    if gradient is not None:
        made.grad = gradient
    return made


def _remote() -> "Remote":
    from remotegpu_offload.torch.device import current  # noqa: PLC0415 - an acceptor has no such module

    return current()


def _reduce_tensor(encoder: Encoder, value: Any) -> Any:
    if value.layout is not torch.strided or value.is_quantized:
        raise TypeError(f"a tensor of layout {value.layout} cannot cross to or from the acceptor: make it dense first")
    parameter = isinstance(value, _PARAMETER)
    wants: Any = value.is_leaf and value.requires_grad
    if value.requires_grad and not (value.is_leaf or encoder.codec.client):
        wants = _HISTORY
    if type(value) not in {torch.Tensor, _PARAMETER}:
        return NotImplemented
    if encoder.kept and (found := _part(encoder, value)) is not None:
        return part, found
    dress = (wants, parameter, value.grad if value.is_leaf else None)
    plain = value.detach()
    if encoder.codec.client and address_of(value):
        if value.is_conj() or value.is_neg():
            plain = plain.resolve_conj().resolve_neg()
        _remote().stream.flush()
        return tensor_at, (address_of(plain), codec.meta_to_json(meta_of(plain)), *dress)
    if (
        not encoder.codec.client
        and _sides.acceptor is not None
        and (id(value) in encoder.gradients or _lives_in_acceptor(_sides.acceptor.executor, plain))
    ):
        executor = _sides.acceptor.executor
        plain = plain.resolve_conj().resolve_neg()
        storage = plain.untyped_storage()
        if dress[2] is not None:
            encoder.gradients.add(id(dress[2]))
        # Exported, because other holders of the storage see its changes.
        start = storage.data_ptr() if encoder.comparing else executor.export(storage)
        address = start + plain.storage_offset() * plain.dtype.itemsize
        return named, (address, codec.meta_to_json(_meta(plain)), storage.nbytes(), *dress)
    if plain.device.type != "cpu":
        raise TypeError(f"a tensor on {plain.device} cannot cross: move it to the CPU or to the remote device first")
    plain = plain.resolve_conj().resolve_neg().contiguous()
    return host, (_piece(plain), codec.meta_to_json(_meta(plain)), *dress)


def _part(encoder: Encoder, value: Any) -> tuple[Resident, str] | None:
    """Finds a tensor in an object that was sent by reference before.

    Used when another object with the same tensor is sent by reference for the first time. Returns the earlier object,
    and the tensor's name in it; None if there is none.
    """
    if encoder.parts is None:
        owners = encoder.codec.residents.others(encoder.kept)
        encoder.parts = {id(held): (owner, name) for owner in owners for name, held in tensors(owner)}
    found = encoder.parts.get(id(value))
    return None if found is None else (Resident(found[0]), found[1])


def _lives_in_acceptor(executor: Executor, tensor: Any) -> bool:
    """Returns whether the tensor is on the acceptor's device.

    If the device is the host, the client must own its storage.
    """
    if executor.device.type != "cpu":
        return bool(tensor.device.type == executor.device.type)
    storage = tensor.untyped_storage()._cdata
    return any(type(held) is Storage and held.storage._cdata == storage for held in list(executor.storages.values()))


def _meta(tensor: Any) -> Meta:
    return Meta(tensor.dtype, tuple(tensor.shape), tensor.stride())


def _piece(tensor: Any) -> Any:
    return pickle.PickleBuffer(memory(tensor)) if tensor.numel() else b""


def _reduce_device(_encoder: Encoder, value: Any) -> Any:
    acceptor = _sides.acceptor
    remote = value.type == torch._C._get_privateuse1_backend_name() or (
        acceptor is not None and value.type == acceptor.executor.device.type != "cpu"
    )
    return place, (None, None) if remote else (value.type, value.index)


def _reduce_dtype(_encoder: Encoder, value: Any) -> Any:
    return dtype, (codec.to_json(value)["d"],)


def _reduce_flag(_encoder: Encoder, value: Any) -> Any:
    return flag, next(iter(codec.to_json(value).items()))


register(torch.Tensor, _reduce_tensor)
register(torch.device, _reduce_device)
register(torch.dtype, _reduce_dtype)
register(torch.layout, _reduce_flag)
register(torch.memory_format, _reduce_flag)
register(torch.Size, lambda _encoder, value: (size, (tuple(value),)))
