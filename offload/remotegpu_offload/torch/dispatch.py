"""The kernel for all operations. It looks up a plan by shapes, strides, types and constants, and makes one at the first
call.

Later calls cost the client only a lookup, an entry in the stream, and new tensor objects for the results.
"""

import itertools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from remotegpu_offload.torch import shapes, shown
from remotegpu_offload.torch.codec import (
    FIRST_TEMPLATE,
    FLOOR,
    FORGET,
    FORGET_ENTRY,
    RESIZE,
    RESIZE_ENTRY,
    Device,
    Generator,
    Host,
    Meta,
    Number,
    Template,
    Tensor,
    meta_from_json,
)
from remotegpu_offload.torch.errors import checked
from remotegpu_offload.torch.generators import generator_id
from remotegpu_offload.torch.plans import (
    ASKED,
    FRESH,
    IN_PLACE,
    MIXED,
    RESIZED,
    Alias,
    Plan,
    aliases_of,
    assemble,
    is_scalar,
    results_of,
)
from remotegpu_offload.torch.storage import Blueprint, Slot, Storages, address_of, meta_of
from remotegpu_offload.torch.stream.stream import ENTRIES, Stream

TEMPLATES: Final = 1 << 16
"""So many templates are kept; then both sides drop all of them."""

LEASED: Final = 64
"""Addresses lent to the acceptor for the results of an operation that returns a list of unknown length."""

_FORMS: Final = {bool: "?", int: "q", float: "d"}
_CALCULATED: Final = frozenset(("arange", "range", "linspace", "logspace"))
_ON_HOST: Final = frozenset(("_ctc_loss", "segment_reduce", "_pad_packed_sequence"))
_BITS: Final = ("Conjugate", "Negative")

_TorchTensor: Final = torch.Tensor
_TorchGenerator: Final = torch._C.Generator
_set_storage: Final = torch.ops.aten.set_.source_Storage_storage_offset
_HOST_KEY: Final = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


class Engine:
    """The state that all kernels of a process share."""

    def __init__(self, stream: Stream, device: torch.device) -> None:
        self.stream = stream
        self.device = device
        self.storages = Storages(device, stream.append)
        self.misses = 0
        self.asked = 0
        self.synchronous = os.environ.get("REMOTEGPU_SYNC") == "1"
        self._numbers = itertools.count(FIRST_TEMPLATE)
        # Guards templates against several threads. Reentrant, because a destructor may run operations.
        self._making = threading.RLock()
        self._kept = 0
        # How many times all templates were dropped.
        self.forgotten = 0
        # The entries of all templates, to send them to a new acceptor.
        self.known: list[bytes] = []
        stream.known = lambda: self.known
        self._blueprints: dict[Meta, Blueprint] = {}
        self._caches: list[dict[Any, Plan]] = []

    def cache(self) -> dict[Any, Plan]:
        """Returns a new cache of plans, which `forget` empties."""
        found: dict[Any, Plan] = {}
        self._caches.append(found)
        return found

    def forget(self) -> None:
        """Drops all templates, because both ends drop them or because the acceptor is a new one."""
        self.forgotten += 1
        for cache in self._caches:
            cache.clear()
        self._blueprints.clear()
        self.known = []
        self._kept = 0

    def template(self, make: Callable[[int], Template]) -> Template:
        """Makes a new template, and sends it to the acceptor before its first use."""
        with self._making:
            self._kept += 1
            if self._kept > TEMPLATES:
                self.forget()
                self.stream.append(FORGET_ENTRY.pack(FORGET))
            made = make(next(self._numbers))
            entry = made.encode()
            self.known.append(entry)
            self.stream.append(entry)
        return made

    def blueprint(self, meta: Meta) -> Blueprint:
        found = self._blueprints.get(meta)
        if found is None:
            if len(self._blueprints) >= TEMPLATES:
                self._blueprints.clear()
            found = self._blueprints[meta] = Blueprint(self.storages, meta)
        return found

    def sent(self) -> None:
        """Called after each entry: sends the entries now, or leaves them to a later call."""
        stream = self.stream
        if len(stream.entries) >= ENTRIES or stream.idle:
            stream.flush()
        if self.synchronous:
            checked(stream.ask("sync"))

    def resize(self, tensor: Any, size: Sequence[int], stride: Sequence[int] | None = None) -> None:
        """Changes a tensor's sizes in place.

        If its storage is too small, replaces it by a larger one with the same content.
        """
        strides = tuple(stride) if stride is not None else contiguous(size)
        offset = tensor.storage_offset()
        meta = Meta(tensor.dtype, tuple(size), strides)
        storage = tensor.untyped_storage()
        needed = meta.nbytes + offset * meta.dtype.itemsize if meta.nbytes else 0
        if needed > storage.nbytes():
            old = storage.data_ptr()
            slot = self.storages.take()
            storage = self.storages.make(slot, needed)
            # At the acceptor the storage is the same, so that other tensors still share it.
            self.stream.append(RESIZE_ENTRY.pack(RESIZE, old, slot[0], needed))
        _set_storage.redispatch(_HOST_KEY, tensor, storage, offset, meta.size, strides)


def contiguous(size: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides of a contiguous tensor, in elements."""
    strides: list[int] = []
    step = 1
    for count in reversed(size):
        strides.append(step)
        step *= max(count, 1)
    return tuple(reversed(strides))


class _Writer:
    """Builds the arguments of a template, in the order in which the kernel collects values."""

    def __init__(self, on_host: bool) -> None:
        self.form = ""
        self.metas: list[Meta] = []
        self._on_host = on_host

    def __call__(self, value: Any, dynamic: bool) -> Any:  # noqa: PLR0911 - one return for each kind of argument
        if isinstance(value, _TorchTensor):
            if address_of(value):
                meta = meta_of(value)
                self.metas.append(meta)
                return Tensor(self._value("Q"), meta)
            number = host_number(value)
            return Host(meta_of(value), value.tolist()) if number is None else self._number(number, value.dtype)
        if isinstance(value, (list, tuple)):
            return [self(item, dynamic) for item in value]
        if isinstance(value, torch.device):
            return Device(value.type != "cpu")
        if isinstance(value, _TorchGenerator):
            return Generator(generator_id(value))
        if dynamic and type(value) in _FORMS:
            return self._number(value, None)
        return value

    def _number(self, value: Any, dtype: torch.dtype | None) -> Any:
        if isinstance(value, complex):
            return Host(Meta(dtype or torch.complex128, (), ()), [value.real, value.imag])
        return Number(self._value(_form(value)), dtype)

    def _value(self, form: str) -> int:
        self.form += form
        return len(self.form) - 1


def _form(value: Any) -> str:
    return _FORMS[type(value)]


def host_number(tensor: Any) -> Any:
    """Returns the content of a local tensor without dimensions, which operations accept on any device; None for
    others."""
    return None if tensor.dim() or tensor.is_meta else tensor.item()


def kernel(engine: Engine, operation: Any) -> Callable[..., Any]:  # noqa: PLR0915 - closures: attributes cost time
    """Makes the kernel of an operation on remote tensors."""
    schema = operation._schema
    name = operation.name()
    base = schema.name.removeprefix("aten::")
    scalars = tuple(is_scalar(argument) and base not in _CALCULATED for argument in schema.arguments)
    named = {argument.name: dynamic for argument, dynamic in zip(schema.arguments, scalars, strict=True)}
    bits = any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in _BITS)
    on_host = base in _ON_HOST
    cache = engine.cache()
    storages, stream = engine.storages, engine.stream
    entries, append, take = stream.entries, stream.append, engine.storages.take
    sent = engine.sent

    def scan(value: Any, dynamic: bool, key: list[Any], values: list[Any]) -> None:
        kind = type(value)
        if isinstance(value, _TorchTensor):
            address = address_of(value)
            key.append(value.shape)
            key.append(value.stride())
            key.append(value.dtype)
            if address:
                values.append(address)
                if bits:
                    key.append((value.dtype.is_complex and value.is_conj(), value.is_neg()))
                return
            number = host_number(value)
            if number is None and on_host and not value.is_meta:
                key.append((kind, str(value.tolist())))
            elif number is None:
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two devices, "
                    f"{shown.to_script(engine.device)} and {value.device}! (when calling {name})"
                )
            elif isinstance(number, complex):
                key.append((complex, number))
            else:
                key.append(type(number))
                values.append(number)
        elif kind is list or kind is tuple:
            key.append(len(value))
            for item in value:
                scan(item, dynamic, key, values)
        elif dynamic and kind in _FORMS:
            key.append(kind)
            values.append(value)
        elif isinstance(value, _TorchGenerator):
            key.append((_TorchGenerator, generator_id(value)))
        else:
            # 1, 1.0 and True are equal, but operations treat them differently.
            key.append(kind)
            key.append(value)

    def run(*args: Any, **kwargs: Any) -> Any:
        key: list[Any] = []
        values: list[Any] = []
        for value, dynamic in zip(args, scalars):  # noqa: B905 - trailing defaults are left out
            if isinstance(value, _TorchTensor) and (address := value.data_ptr()) >= FLOOR and not bits:
                key.append(value.shape)
                key.append(value.stride())
                key.append(value.dtype)
                values.append(address)
            elif value is None:
                key.append(None)
            else:
                scan(value, dynamic, key, values)
        if kwargs:
            for word, value in kwargs.items():
                key.append(word)
                scan(value, named[word], key, values)
        found = tuple(key)
        plan = cache.get(found)
        if plan is None:
            plan = learn(found, args, kwargs)
        kind = plan.kind
        if kind == FRESH:
            slot = take()
            append(plan.pack(plan.number, *values, slot[0]))
            result = plan.result.build(slot)
        elif kind == IN_PLACE:
            append(plan.pack(plan.number, *values))
            result = args[0]
        else:
            return rare(plan, found, values, args, kwargs)
        if len(entries) >= ENTRIES or stream.idle or engine.synchronous:
            sent()
        return result

    def rare(plan: Plan, key: Any, values: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if plan.kind == RESIZED:
            for alias, size, stride in plan.result:
                engine.resize(alias.of(args, kwargs), size, stride)
            return run(*args, **kwargs)
        if plan.kind == ASKED:
            return ask(plan, key, values, args, kwargs)
        slots = [take() for _ in plan.fresh]
        append(plan.pack(plan.number, *values, *(slot[0] for slot in slots)))
        tensors = [blueprint.build(slot) for blueprint, slot in zip(plan.fresh, slots, strict=True)]
        sent()
        return assemble(plan.result, tensors, args, kwargs)

    def ask(plan: Plan, key: Any, values: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        engine.asked += 1
        slots = [take() for _ in range(plan.leased)]
        append(plan.pack(plan.number, *values, *(slot[0] for slot in slots)))
        try:
            results = checked(stream.ask("result", {"ticket": slots[0][0]})).header["results"]
        except BaseException:
            for slot in slots:
                storages.give_back(slot)
            raise
        unused = iter(slots)
        made = [_received(engine, result, unused) for result in results]
        for slot in unused:
            storages.give_back(slot)
        result = _returned(engine, aliases, made, args, kwargs)
        if name in shapes.LEARNT:
            learn(key, args, kwargs, result)
        return result

    def learn(key: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: Any = None) -> Plan:
        before = engine.forgotten
        cache[key] = plan = make(args, kwargs, results)
        # If another thread has dropped all templates in the meantime, the acceptor will soon drop those of this plan.
        if engine.forgotten != before:
            cache.pop(key, None)
        return plan

    def make(args: tuple[Any, ...], kwargs: dict[str, Any], results: Any = None) -> Plan:
        engine.misses += 1
        writer = _Writer(on_host)
        positional = tuple(writer(value, dynamic) for value, dynamic in zip(args, scalars))  # noqa: B905
        words = {word: writer(value, named[word]) for word, value in kwargs.items()}
        try:
            if results is None:
                results = shapes.infer(operation, args, kwargs)
            tree, metas, resized = results_of(schema, aliases, results, args, kwargs)
        except shapes.Unknown:
            leased = max(1, sum(LEASED if "List" in str(returned.type) else 1 for returned in schema.returns))
            template = engine.template(
                lambda number: Template(number, name, positional, words, writer.form + "Q" * leased, None, leased)
            )
            return Plan(ASKED, template.number, template.form, (), None, leased)
        if resized:
            return Plan(RESIZED, 0, "", (), resized)
        fresh = tuple(engine.blueprint(meta) for meta in metas)
        form = writer.form + "Q" * len(fresh)
        template = engine.template(lambda number: Template(number, name, positional, words, form, tuple(metas)))
        if tree == 0 and len(fresh) == 1:
            return Plan(FRESH, template.number, form, fresh, fresh[0])
        if isinstance(tree, Alias) and tree.where == 0 and not fresh:
            return Plan(IN_PLACE, template.number, form, fresh, tree)
        return Plan(MIXED, template.number, form, fresh, tree)

    aliases = aliases_of(schema)
    return run


def _received(engine: Engine, value: Any, slots: "itertools.chain[Slot] | Any") -> Any:
    """Makes a result from the acceptor's description: a tensor's description, a list of results, or a plain value."""
    match value:
        case {"meta": meta}:
            return engine.blueprint(meta_from_json(meta)).build(next(slots))
        case {"alias": meta}:
            return meta_from_json(meta)
        case {"complex": [real, imag]}:
            return complex(real, imag)
        case list(items):
            return [_received(engine, item, slots) for item in items]
        case _:
            return value


def _returned(
    engine: Engine, aliases: Sequence[Alias | None], made: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Converts the acceptor's results for the caller. Written arguments get the sizes that they have there."""
    out = []
    for alias, value in zip(aliases, made, strict=True):
        if alias is None:
            out.append(value)
            continue
        tensor = alias.of(args, kwargs)
        if isinstance(value, Meta) and tuple(tensor.shape) != value.size:
            engine.resize(tensor, value.size, value.stride)
        out.append(tensor)
    return tuple(out) if len(out) > 1 else out[0] if out else None
