"""The remote torch device of this process: torch's PrivateUse1 back end in Python, whose kernels send operations."""

import functools
import os
from typing import Any, Final, Protocol

import torch
from torch.utils import backend_registration

from remotegpu_offload.torch import guard, kernels, layouts, patches
from remotegpu_offload.torch.codec import Meta
from remotegpu_offload.torch.dispatch import Engine, kernel
from remotegpu_offload.torch.errors import checked
from remotegpu_offload.torch.shown import NAME
from remotegpu_offload.torch.storage import Blueprint, Storages
from remotegpu_offload.torch.stream.interrupt import watch_cells
from remotegpu_offload.torch.stream.stream import Stream
from remotegpu_offload.wire.errors import OffloadError
from remotegpu_offload.wire.frames import Service
from remotegpu_offload.wire.peer import Peer

_KEY: Final = "PrivateUse1"
# Prefixes of operations that belong to one vendor's libraries.
_VENDORS: Final = ("cudnn", "_cudnn", "miopen", "_miopen", "mkldnn", "_mkldnn", "mps", "_mps", "_thnn_fused")
_TESTS: Final = ("_test_", "_foobar")
_OWN_KERNELS: Final = ("CPU", "CUDA", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


LACKING: Final = frozenset(("not dense", "no kernel for dense tensors", "the acceptor has no kernel"))
"""Answers of `placement` for operations that the device refuses."""


class Source(Protocol):
    """A source of the connection: a session, whose peer changes when the session moves."""

    @property
    def peer(self) -> Peer: ...


class UnsupportedTorchError(OffloadError):
    """This version of torch does not support a device that is written in Python."""


class _Module:
    """The module `torch.remote`: the functions that torch requires of a back end."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Seeds the device's generator in order with the operations, without waiting. `torch.manual_seed` calls it."""
        if _state.current is not None:
            _state.current.stream.tell("seed", {"generator": 0, "seed": int(seed) & (1 << 64) - 1})

    def get_rng_state(self, device: Any = None) -> Any:  # noqa: ARG002 - there is only one device
        """Returns the state of the device's generator, as a local tensor of bytes."""
        reply = checked(current().stream.ask("rng_get", {"generator": 0}))
        return torch.frombuffer(bytearray(reply.buffers[0]), dtype=torch.uint8)

    def set_rng_state(self, state: Any, device: Any = None) -> None:  # noqa: ARG002 - there is only one device
        current().stream.tell("rng_set", {"generator": 0}, (bytes(state.tolist()),))

    def get_amp_supported_dtype(self) -> list[Any]:
        return [torch.float16, torch.bfloat16]


class Remote:
    """The device of this process, with its connection."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.device = torch.device(NAME, 0)
        self.stream = Stream(lambda: source.peer)
        self.engine = Engine(self.stream, self.device)
        hello = checked(source.peer.request(Service.TORCH, {"op": "hello"})).header
        self.backend = str(hello["backend"])
        self.torch = str(hello["torch"])
        self.operations = frozenset(str(name) for name in hello["operations"])
        self.registered: dict[str, str] = {}
        self._library = torch.library.Library("aten", "IMPL")
        self.transfers: kernels.Transfers
        self._register()

    @property
    def storages(self) -> Storages:
        return self.engine.storages

    def synchronize(self) -> None:
        """Waits until all operations have been executed.

        Raises the first error of an operation that was not yet reported.
        """
        checked(self.stream.ask("sync"))

    def stats(self) -> dict[str, int]:
        """Returns counts of the client: sent operations and batches, bytes of operations, plans, operations whose
        results only the acceptor knew, and live storages."""
        return {
            "operations": self.stream.operations,
            "batches": self.stream.batches,
            "bytes": self.stream.bytes,
            "plans": self.engine.misses,
            "asked": self.engine.asked,
            "storages": len(self.storages),
        }

    def _register(self) -> None:
        engine = self.engine
        run = {name: kernel(engine, _operation(f"aten::{name}")) for name in ("copy_", "_to_copy")}
        self.transfers = transfers = kernels.Transfers(engine, run["copy_"])
        own = {
            **kernels.factories(engine, transfers),
            **kernels.copies(transfers, run["copy_"], run["_to_copy"]),
            **kernels.packing(transfers),
            **{name: kernels.local(_operation(f"aten::{name}")) for name in kernels.LOCAL},
        }
        assert set(own) == kernels.OWN
        for name, made in own.items():
            self._library.impl(name, made, _KEY)
        for name, cell in kernels.CELLS.items():
            self._library.impl(name, cell, "AutogradPrivateUse1")
            self._library.impl(name, cell, _KEY)
        for name in torch._C._dispatch_get_all_op_names():
            self.registered[name] = how = placement(name, self.operations)
            if how != "acceptor":
                continue
            made = kernel(engine, _operation(name))
            if name.startswith(("aten::index.", "aten::index_put", "aten::_index_put", "aten::_unsafe_index")):
                made = kernels.indexing(transfers, made)
            self._library.impl(name.removeprefix("aten::"), made, _KEY)
        self._library.impl("_pin_memory", lambda tensor, device=None: tensor, "CPU")  # noqa: ARG005 - torch's signature


def placement(name: str, available: frozenset[str]) -> str:  # noqa: PLR0911 - one return for each answer
    """Decides how an operation is executed: `acceptor` (one entry), `client`, or `composed` (of other operations).

    Any other result is the reason why the device refuses the operation.
    """
    space, _, own = name.partition("::")
    if space != "aten":
        return "not torch's own"
    if own in kernels.OWN or own in kernels.CELLS:
        return "client" if own in kernels.OWN else "composed"
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if own.startswith(_VENDORS):
        return "one vendor's own"
    if own.startswith(_TESTS):
        return "torch's own tests"
    if layouts.reason(name):
        return "not dense"
    if not any(has(name, key) for key in _OWN_KERNELS):
        return "composed" if has(name, "CompositeImplicitAutograd") else "no kernel for dense tensors"
    operation = _operation(name)
    schema = operation._schema
    words = {argument.name for argument in schema.arguments}
    if not any("Tensor" in str(argument.type) for argument in schema.arguments):
        return "composed"
    view = any(returned.alias_info is not None and not returned.alias_info.is_write for returned in schema.returns)
    if torch.Tag.inplace_view in operation.tags or view or {"device", "layout"} & words:
        return "composed"
    if name in available:
        if has(name, "CPU") or has(name, "CUDA"):
            return "acceptor"
        refused = [
            how for each in layouts.origins(name) if each in _names() and (how := placement(each, available)) in LACKING
        ]
        return refused[0] if refused else "acceptor"
    return "composed" if has(name, "CompositeImplicitAutograd") else "the acceptor has no kernel"


@functools.cache
def _names() -> frozenset[str]:
    return frozenset(torch._C._dispatch_get_all_op_names())


def _operation(name: str) -> Any:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


class _State:
    prepared = False
    current: Remote | None = None


_state = _State()


def prepare() -> None:
    """Makes PrivateUse1 the remote device, once in a process.

    Raises UnsupportedTorchError with a remedy if this torch does not support it.
    """
    if _state.prepared:
        return
    advice = "use torch 2.15, or offload functions (`function:` rules) or the whole program (`--split app`) instead"
    setup = getattr(backend_registration, "_setup_privateuseone_for_python_backend", None)
    if setup is None or not hasattr(torch._C, "_acc"):
        raise UnsupportedTorchError(
            f"torch {torch.__version__} cannot have a device that is written in Python: {advice}"
        )
    try:
        setup(NAME, backend_module=_Module(), device_guard=guard.guard())
        guard.arm()
        _self_test()
    except Exception as error:
        raise UnsupportedTorchError(
            f"torch {torch.__version__} did not take the remote device ({error}): {advice}"
        ) from error
    _state.prepared = True


def _self_test() -> None:
    """Tests the basic requirements: storages at artificial addresses, and notification when a storage is freed."""
    freed: list[bytes] = []
    storages = Storages(torch.device(NAME, 0), freed.append)
    slot = storages.take()
    made = Blueprint(storages, Meta(torch.float32, (2, 3), (3, 1))).build(slot)
    if (made.data_ptr(), made.device.type, made.untyped_storage().nbytes()) != (slot[0], NAME, 24):
        raise RuntimeError("a tensor at a made-up address is not where it should be")
    del made
    if len(freed) != 1 or len(storages):
        raise RuntimeError("a storage's end goes unnoticed")


def activate(source: Source) -> Remote:
    """Connects the device to an acceptor. Possible only once in a process, because torch keeps kernels permanently.

    Raises OffloadError if the process has a device already, or if torch does not support one.
    """
    prepare()
    if _state.current is not None:
        raise OffloadError("this process has its remote device already")
    _state.current = Remote(source)
    patches.install(_state.current.device, _state.current.storages, _state.current.transfers)
    os.register_at_fork(after_in_child=_forked)
    watch_cells()
    return _state.current


def current() -> Remote:
    """Returns the device of this process. Raises OffloadError before `activate`."""
    if _state.current is None:
        raise OffloadError("there is no remote device: start the program with `remotegpu offload run`")
    return _state.current


def _forked() -> None:
    if _state.current is not None:
        _state.current.stream.abandon()
