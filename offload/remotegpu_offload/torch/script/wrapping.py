"""Wrappers by which the device names of an unmodified script refer to the remote device.

On the way in, every torch function and method that takes a device passes the remote one to torch. On the way out, every
attribute with a device (`Tensor.device`, `.is_cuda`, `.type()`, a storage's `.device`) has the script's name. A
TorchFunctionMode could do both, but would cost 1.7 us in every torch call and apply only to the thread that entered it.
The wrappers cost nothing where no device is named, and apply to every thread, including those that torch starts
(pin_memory, autograd). PrivateUse1 itself cannot be named `cuda`, because torch reserves the names of its own devices.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _device

from remotegpu_offload.torch import layouts
from remotegpu_offload.torch.cuda import refused
from remotegpu_offload.torch.script.device_names import is_remote, to_remote
from remotegpu_offload.torch.shown import NAME, device_type, state, to_script

_OTHER = (torch.fft, torch.sparse, torch.special, torch.signal.windows, torch.nested)
_BY_HAND = ("as_tensor", "asarray", "from_file", "tensor", "sparse_bsr_tensor", "new_tensor", "new", "to_empty")

_original_device = torch._C.TensorBase.device


def install() -> None:
    """Installs the wrappers permanently.

    PrivateUse1 must have its name, and `device_names.install` must have been called.
    """
    _wrap_functions()
    _wrap_tensor()
    _wrap_storage()
    _wrap_default_device()
    _wrap_moves()


def _with_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function whose keyword `device` is translated."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = to_remote(kwargs["device"])
        # The acceptor pins the memory that its device reads.
        kwargs.pop("pin_memory", None)
        return function(*args, **kwargs)

    return call


def _with_any_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function that takes a device as keyword or positional argument."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = to_remote(kwargs["device"])
        return function(
            *(to_remote(value) if value.__class__ in {str, device_type} else value for value in args), **kwargs
        )

    return call


def _to(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `Tensor.to`, where a number is also a device."""

    @functools.wraps(function)
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args and args[0].__class__ in {str, device_type, int}:
            args = (to_remote(args[0]), *args[1:])
        elif "device" in kwargs:
            kwargs["device"] = to_remote(kwargs["device"])
        return function(self, *args, **kwargs)

    return to


def _wrap_functions() -> None:
    """Wraps every function of torch's own namespaces whose schema has a device, and the functions in `_BY_HAND`."""
    takers = {
        schema.name.removeprefix("aten::")
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("aten::") and any(argument.name == "device" for argument in schema.arguments)
    }
    takers |= set(_BY_HAND) | {constructor.__name__ for constructor in _device._device_constructors()}
    takers -= {"to", "pin_memory", "is_pinned", "Generator"}
    for owner in (torch, torch.Tensor, *_OTHER):
        for name in sorted(takers):
            function = getattr(owner, name, None)
            if callable(function) and not isinstance(function, type):
                _replace(owner, name, (_with_any_device if name in _BY_HAND else _with_device)(function))
    for name, short in (("fft_fftfreq", "fftfreq"), ("fft_rfftfreq", "rfftfreq")):
        if name in takers:
            _replace(torch.fft, short, _with_device(getattr(torch.fft, short)))
    for name in torch.signal.windows.__all__:
        _replace(torch.signal.windows, name, _with_device(getattr(torch.signal.windows, name)))
    torch.Tensor.to = _to(torch.Tensor.to)
    # Tensor classes that contain other tensors, such as jagged ones, are on the device of their contents.
    torch.Tensor._make_wrapper_subclass = staticmethod(_with_any_device(torch.Tensor._make_wrapper_subclass))
    torch.nn.Module.to_empty = _with_device(torch.nn.Module.to_empty)
    for name in ("nested_tensor", "as_nested_tensor"):
        _replace(torch.nested, name, _not_nested(name, _with_device(getattr(torch.nested, name))))


def _not_nested(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Refuses nested tensors with layout torch.strided. torch makes them without calling kernels, so a kernel could
    refuse only their use."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        made = function(*args, **kwargs)
        if made.layout is torch.strided and is_remote(made):
            raise NotImplementedError(refused.sentence(f"torch.nested.{name}", layouts.NESTED))
        return made

    return call


def _replace(owner: Any, name: str, function: Callable[..., Any]) -> None:
    """Replaces a function by a wrapper. TorchScript still finds the operator."""
    before = getattr(owner, name)
    operator = torch.jit._builtins._find_builtin(before) if owner is not torch.Tensor else None
    if operator is not None:
        torch.jit._builtins._register_builtin(function, operator)
    setattr(owner, name, function)


def _wrap_tensor() -> None:
    base = torch._C.TensorBase

    def get_device(self: Any) -> Any:
        device = _original_device.__get__(self)
        return state.shown if device.type == NAME else device

    torch.Tensor.device = property(get_device, doc=base.device.__doc__)
    for name in state.names:
        setattr(
            torch.Tensor,
            f"is_{name}",
            property(functools.partial(_is_called, name, getattr(base, f"is_{name}").__get__)),
        )
        setattr(torch.Tensor, name, _mover(name))
    type_of = base.type

    @functools.wraps(type_of)
    def type_(self: Any, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        if dtype is None:
            return type_of(self).replace(f"torch.{NAME}.", f"torch.{state.name}.")
        if isinstance(dtype, str) and dtype.removeprefix("torch.").split(".")[0] in state.names:
            dtype = functools.reduce(getattr, dtype.split(".")[1:], torch)
        true = getattr(dtype, "remote_dtype", None)
        if true is not None:
            return self.to(torch.device(NAME, 0), true, non_blocking=non_blocking)
        return type_of(self, dtype, non_blocking, **kwargs)

    torch.Tensor.type = type_
    # torch recognises the functions that it allows on uninitialised parameters by identity.
    allowed = torch.nn.parameter.UninitializedTensorMixin._allowed_methods
    allowed.extend([getattr(torch.Tensor, name) for name in ("to", *state.names)])


def _is_called(name: str, original: Callable[[Any], bool], tensor: Any) -> bool:
    return bool(original(tensor) or (state.name == name and is_remote(tensor)))


def _mover(name: str) -> Callable[..., Any]:
    def move(
        self: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format
    ) -> Any:
        true = to_remote(name if device is None else f"{name}:{device}" if isinstance(device, int) else device)
        return self.to(true, non_blocking=non_blocking, memory_format=memory_format)

    move.__name__ = name
    move.__doc__ = f"A copy on the remote device, which this script calls {name}; the tensor itself if it is there."
    return move


def _wrap_storage() -> None:
    """Makes storages answer with the script's name, and move as a tensor over their bytes."""
    storage = torch.UntypedStorage
    base = torch._C.StorageBase
    true_of = base.device
    kept = {name: getattr(storage, name) for name in ("cpu", "clone", "to", "cuda", "copy_", "tolist", "__new__")}

    def remote(self: Any) -> bool:
        return bool(true_of.__get__(self).type == NAME)

    storage.device = property(lambda self: to_script(true_of.__get__(self)))
    storage.is_cuda = property(lambda self: self.device.type == "cuda")

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        device = to_remote(kwargs.get("device"))
        if device is None or torch.device(device).type != NAME:
            return kept["__new__"](cls, *args, **kwargs)
        size = kwargs.get("size", args[0] if args else 0)
        made = (
            torch.empty(size, dtype=torch.uint8, device=device)
            if isinstance(size, int)
            else torch.tensor(size, dtype=torch.uint8, device=device)
        )
        return made.untyped_storage()

    def cpu(self: Any) -> Any:
        return _bytes_of(self).cpu().untyped_storage() if remote(self) else kept["cpu"](self)

    def clone(self: Any) -> Any:
        return _bytes_of(self).clone().untyped_storage() if remote(self) else kept["clone"](self)

    def to(self: Any, *, device: Any, non_blocking: bool = False) -> Any:
        true = torch.device(to_remote(device))
        if NAME not in {true.type, true_of.__get__(self).type}:
            return kept["to"](self, device=device, non_blocking=non_blocking)
        return self if true.type == NAME and remote(self) else _bytes_of(self).to(true).untyped_storage()

    def copy(self: Any, source: Any, non_blocking: bool | None = None) -> Any:
        if not remote(self) and not remote(getattr(source, "_untyped_storage", source)):
            return kept["copy_"](self, source, non_blocking)
        _bytes_of(self).copy_(_bytes_of(getattr(source, "_untyped_storage", source)))
        return self

    storage.__new__ = staticmethod(new)
    storage.cpu, storage.clone, storage.to, storage.copy_ = cpu, clone, to, copy
    storage.tolist = lambda self: kept["tolist"](cpu(self) if remote(self) else self)
    for name in state.names:
        setattr(storage, name, functools.partialmethod(_storage_to, name))


def _storage_to(storage: Any, name: str, device: Any = None, non_blocking: bool = False) -> Any:
    return storage.to(device=name if device is None or isinstance(device, int) else device, non_blocking=non_blocking)


def _bytes_of(storage: Any) -> Any:
    """Returns a tensor of bytes over the whole storage."""
    device = NAME if storage.device.type in state.names else storage.device
    tensor = torch.empty(0, dtype=torch.uint8, device=device)
    return tensor.set_(storage, 0, (storage.nbytes(),), (1,))


def _wrap_moves() -> None:
    """Keeps parameters the same objects when they move, as on CUDA: modules share them, and optimizers refer to them.

    torch itself sets a parameter's data only if both devices use the same kind of tensor, and otherwise makes a new
    one.
    """
    apply = torch.nn.Module._apply
    original = torch.__future__.get_swap_module_params_on_conversion
    # torch's own setting is shared by all threads, and other threads may also move modules.
    swapping = threading.local()

    @functools.wraps(original)
    def swaps() -> bool:
        return getattr(swapping, "active", False) or original()

    def move(self: Any, fn: Callable[[Any], Any], recurse: bool) -> Any:
        if swaps():
            return apply(self, fn, recurse)
        swapping.active = True
        try:
            return apply(self, fn, recurse)
        except RuntimeError as error:
            # The autograd graph or a weak reference refers to the parameter.
            if "Couldn't swap" not in str(error):
                raise
        finally:
            swapping.active = False
        return apply(self, fn, recurse)

    @functools.wraps(apply)
    def _apply(self: Any, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        lazy = {name: type(each) for name, each in self._parameters.items() if torch.nn.parameter.is_lazy(each)}
        moved = move(self, fn, recurse)
        # Setting the data turns a lazy parameter into an ordinary one, which would have a shape.
        for name, kind in lazy.items():
            self._parameters[name].__class__ = kind
        return moved

    torch.nn.Module._apply = _apply
    torch.__future__.get_swap_module_params_on_conversion = swaps


def _wrap_default_device() -> None:
    """Wraps `set_default_device`, `with torch.device("cuda"):`, and functions that return the default device."""
    enter = _device.DeviceContext.__init__

    @functools.wraps(enter)
    def init(self: Any, device: Any) -> None:
        enter(self, to_remote(device))

    _device.DeviceContext.__init__ = init
    get_default = torch.get_default_device
    torch.get_default_device = functools.wraps(get_default)(lambda: to_script(get_default()))
    set_type = torch.set_default_tensor_type

    @functools.wraps(set_type)
    def set_default_tensor_type(kind: Any) -> None:
        if isinstance(kind, str) and kind.removeprefix("torch.").split(".")[0] in state.names:
            kind = functools.reduce(getattr, kind.split(".")[1:], torch)
        dtype = getattr(kind, "remote_dtype", None)
        if dtype is None:
            set_type(kind)
            return
        torch.set_default_dtype(dtype)
        torch.set_default_device(torch.device(NAME, 0))

    torch.set_default_tensor_type = set_default_tensor_type
