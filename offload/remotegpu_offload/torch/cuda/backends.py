"""Patches of torch for the remote device outside of torch.cuda.

They concern torch.backends, torch.compile, nccl, NVTX, profilers, dlpack and record_stream.
"""

import functools
import threading
import traceback
import warnings
from typing import Any, Final

import torch
from torch._subclasses import fake_tensor

from remotegpu_offload.torch import shown
from remotegpu_offload.torch.cuda import figures, refused
from remotegpu_offload.torch.script import device_names
from remotegpu_offload.torch.shown import NAME
from remotegpu_offload.torch.stream import link

_ELSEWHERE: Final = "its memory is in another machine; use .cpu() first"
_CLIENT_SIDE: Final = frozenset(("eager", "aot_eager", "aot_eager_decomp_partition", "aot_eager_default_partitioner"))
"""Back ends of torch.compile that run torch operations, one after the other."""


def install() -> None:
    """Installs the patches until the process ends. `names.arm` calls it once, through `cuda.install`."""
    torch.backends.cuda.is_built = lambda: True
    # torch flattens weights only for cuDNN, which the acceptor would do itself.
    torch.backends.cudnn.is_acceptable = lambda _tensor: False
    torch.backends.cudnn.version = lambda: figures.get_device_properties().cudnn
    torch.backends.cudnn.is_available = lambda: figures.get_device_properties().cudnn is not None
    module_of = torch.get_device_module

    @functools.wraps(module_of)
    def get_device_module(device: Any = None) -> Any:
        return module_of(shown.current() if device is None else device)

    torch.get_device_module = get_device_module
    _threads()
    _compile()
    _distributed()
    _tensor_methods()
    _nvtx()
    _profilers()


def _threads() -> None:
    """Replaces torch.set_num_threads with a function that also sets the number on the acceptor.

    The function does so only in the main thread. The device of the acceptor may be a CPU, on which the number of
    threads changes the last bits of results.
    """
    original = torch.set_num_threads

    @functools.wraps(original)
    def set_num_threads(count: int) -> None:
        original(count)
        # A call in another thread concerns only that thread, for example the one that pins memory.
        if threading.current_thread() is threading.main_thread():
            link.later({"op": "threads", "count": count})

    torch.set_num_threads = set_num_threads


def _compile() -> None:
    """Disables torch.compile for back ends that run torch's operations one by one, as eager mode does.

    Other back ends generate kernels for a local device, so the remote device refuses them.
    """
    original = torch.compile

    @functools.wraps(original)
    def compile_(model: Any = None, **options: Any) -> Any:
        if options.get("backend") in _CLIENT_SIDE:
            options = {"disable": True}
        return original(model, **options)

    torch.compile = compile_
    # Every compilation begins with fake tensors. For a remote tensor, this would call the driver and abort the process.
    likeness = fake_tensor.FakeTensorConverter.from_real_tensor

    @functools.wraps(likeness)
    def from_real_tensor(self: Any, fake_mode: Any, t: Any, *args: Any, **kwargs: Any) -> Any:
        if device_names.is_remote(t) and _exporting():
            reason = "it traces with likenesses of tensors, which ask the driver of a device in this machine"
            raise RuntimeError(refused.sentence("torch.export", reason) + ", or export it on the CPU: .cpu() first")
        if device_names.is_remote(t):
            reason = "it makes kernels for a device in this machine"
            raise RuntimeError(refused.sentence("torch.compile", reason) + ", or say backend='eager'")
        return likeness(self, fake_mode, t, *args, **kwargs)

    fake_tensor.FakeTensorConverter.from_real_tensor = from_real_tensor


def _exporting() -> bool:
    """Returns whether torch.export is a caller. torch sets its own flag only later."""
    return any(
        frame.f_globals.get("__name__", "").startswith("torch.export") for frame, _ in traceback.walk_stack(None)
    )


def _distributed() -> None:
    if not torch.distributed.is_available():
        return
    original = torch.distributed.init_process_group

    @functools.wraps(original)
    def init_process_group(backend: Any = None, *args: Any, **options: Any) -> Any:
        if "nccl" in str(backend or "nccl"):
            reason = "nccl connects devices in the machines of its processes"
            sentence = refused.sentence("torch.distributed.init_process_group", reason)
            raise RuntimeError(f"{sentence}. For tensors on the CPU say backend='gloo'")
        return original(backend, *args, **options)

    torch.distributed.init_process_group = init_process_group


def _tensor_methods() -> None:
    dlpack, numpy, share = torch.Tensor.__dlpack__, torch.Tensor.numpy, torch.Tensor.share_memory_

    @functools.wraps(dlpack)
    def to_dlpack(self: Any, *args: Any, **kwargs: Any) -> Any:
        if device_names.is_remote(self):
            raise BufferError(refused.sentence("Tensor.__dlpack__", _ELSEWHERE))
        return dlpack(self, *args, **kwargs)

    @functools.wraps(numpy)
    def to_numpy(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return numpy(self, *args, **kwargs)
        except TypeError as error:
            told = str(error)
        # torch's own message, with the device's name in the script.
        raise TypeError(told.replace(f"{NAME}:0", str(shown.state.shown)))

    @functools.wraps(share)
    def share_memory_(self: Any) -> Any:
        # As for CUDA tensors, nothing is shared until another process asks for it.
        return self if device_names.is_remote(self) else share(self)

    torch.Tensor.__dlpack__, torch.Tensor.numpy, torch.Tensor.share_memory_ = to_dlpack, to_numpy, share_memory_
    shared = torch.UntypedStorage.is_shared
    torch.UntypedStorage.is_shared = lambda self: self.device.type in shown.names() or shared(self)
    record = torch.Tensor.record_stream

    @functools.wraps(record)
    def record_stream(self: Any, stream: Any) -> None:
        if not device_names.is_remote(self):
            record(self, stream)

    torch.Tensor.record_stream = record_stream
    # hasattr() must return False, as for a tensor on the CPU: then callers use .cpu().
    interface = torch.Tensor.__cuda_array_interface__

    def cuda_array_interface(self: Any) -> Any:
        if device_names.is_remote(self):
            raise AttributeError(refused.sentence("Tensor.__cuda_array_interface__", _ELSEWHERE))
        return interface.__get__(self)

    torch.Tensor.__cuda_array_interface__ = property(cuda_array_interface)


def _nvtx() -> None:
    """Disables NVTX, whose marks are for a profiler of a local device."""
    nvtx = torch.cuda.nvtx
    for name in ("mark", "range_push", "range_pop", "range_start", "range_end"):
        setattr(nvtx, name, lambda *_args, **_kwargs: 0)


def _profilers() -> None:
    """Keeps profilers from asking the driver for the device's events, which would fail for each operation.

    They measure the time in which the client sends an operation.
    """
    begin = torch.autograd.profiler.profile.__init__

    @functools.wraps(begin)
    def init(self: Any, enabled: bool = True, *, use_device: Any = None, **options: Any) -> None:
        if enabled and use_device in shown.names():
            warnings.warn(
                f"profiler: times on {use_device} are not recorded, for the device is remote; those here are of "
                "handing operations over. For both run the whole program at the acceptor (`remotegpu offload run "
                "--split app SCRIPT`)",
                RuntimeWarning,
                stacklevel=2,
            )
            options["use_cpu"], use_device = True, None
        begin(self, enabled, use_device=use_device, **options)

    torch.autograd.profiler.profile.__init__ = init
