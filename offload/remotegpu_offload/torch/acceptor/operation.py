"""Prepares a template of the stream for execution: finds torch's operation, and constructs its arguments."""

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from remotegpu_offload.torch import codec, layouts
from remotegpu_offload.torch.codec import Device, Generator, Host, Meta, Number, Template, Tensor

if TYPE_CHECKING:
    from remotegpu_offload.torch.acceptor.executor import Executor

_HOST: Final = torch.device("cpu")


class Operation:
    """A template that is ready for execution."""

    def __init__(self, template: Template) -> None:
        space, _, rest = template.name.partition("::")
        packet, _, overload = rest.partition(".")
        self.name = template.name
        try:
            self.call = getattr(getattr(getattr(torch.ops, space), packet), overload or "default")
        except AttributeError as error:
            raise ValueError(f"torch {torch.__version__} has no operation {template.name}") from error
        form = struct.Struct("<" + template.form)
        self.read = form.unpack_from
        self.size = form.size
        self.outs = template.outs
        self.leased = template.leased
        self.single = self.outs[0] if self.outs is not None and len(self.outs) == 1 else None
        self.args = template.args
        self.kwargs = template.kwargs
        self.metas: list[Meta] = []
        self.tensors: list[int] = []
        self._collect(template.args)
        self._collect(template.kwargs)
        schema = self.call._schema
        mutable = [bool(argument.alias_info and argument.alias_info.is_write) for argument in schema.arguments]
        self._written = self._mutated(schema, mutable)
        self.clears = any(mutable) and (self.outs is None or any(argument.is_out for argument in schema.arguments))
        # Most arguments are constants: the list is copied, and the other arguments are filled in.
        self._plain = list(template.args)
        self._fill = [
            (index, value.at, value.meta) for index, value in enumerate(template.args) if isinstance(value, Tensor)
        ]
        self._numbers = [
            (index, value.at)
            for index, value in enumerate(template.args)
            if isinstance(value, Number) and value.dtype is None
        ]
        done = {index for index, *_ in self._fill} | {index for index, _ in self._numbers}
        self._other = [index for index, value in enumerate(template.args) if index not in done and _needs(value)]

    def arguments(self, executor: "Executor", values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        args = self._plain.copy()
        for index, source, meta in self._fill:
            args[index] = executor.tensor(values[source], meta)
        for index, source in self._numbers:
            args[index] = values[source]
        for index in self._other:
            args[index] = _value(executor, args[index], values)
        if not self.kwargs:
            return args, {}
        return args, {name: _value(executor, value, values) for name, value in self.kwargs.items()}

    def written(self, values: Sequence[Any]) -> list[int]:
        """Returns the addresses of storages that this operation creates or changes."""
        made = 0 if self.outs is None else len(self.outs)
        return [values[index] for index in self._written] + list(values[len(values) - made :])

    def ticket(self, values: Sequence[Any]) -> int:
        """Returns the address by which the client asks for the results."""
        address: int = values[len(values) - self.leased]
        return address

    def described(self, number: int) -> str:
        return f"operation {number}, {codec.describe(self.name, self.metas)}"

    def undense(self, out: Any) -> Exception | None:
        """Returns an error if the operation has made a tensor that is not dense; None otherwise."""
        for made in flat(out):
            if isinstance(made, torch.Tensor) and (kind := layouts.kind(made)):
                return NotImplementedError(
                    f"{self.name} makes a {kind} tensor: the tensors of a remote device are dense. Keep such tensors "
                    "on the CPU, or run the function that needs them at the acceptor, with a rule "
                    "`function: module.name`"
                )
        return None

    def has_written(self, made: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Returns whether a result of an operation that writes is one of its arguments."""
        return bool(self._written) and any(made is leaf for leaf in flat([*args, *kwargs.values()]))

    def _collect(self, value: Any) -> None:
        def leaf(item: Any) -> Any:
            if isinstance(item, Tensor):
                self.metas.append(item.meta)
                self.tensors.append(item.at)
            return item

        codec.walk(value, leaf)

    def _mutated(self, schema: Any, mutable: Sequence[bool]) -> list[int]:
        found: list[int] = []

        def leaf(item: Any) -> Any:
            if isinstance(item, Tensor):
                found.append(item.at)
            return item

        for index, (argument, written) in enumerate(zip(schema.arguments, mutable, strict=True)):
            if written and index < len(self.args):
                codec.walk(self.args[index], leaf)
            elif written and argument.name in self.kwargs:
                codec.walk(self.kwargs[argument.name], leaf)
        return found


def _needs(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_needs, value))
    return isinstance(value, (Tensor, Number, Host, Device, Generator))


def _value(executor: "Executor", value: Any, values: Sequence[Any]) -> Any:  # noqa: PLR0911 (one return for each kind)
    if isinstance(value, Tensor):
        return executor.tensor(values[value.at], value.meta)
    if isinstance(value, Number):
        number = values[value.at]
        return number if value.dtype is None else torch.tensor(number, dtype=value.dtype)
    if isinstance(value, Host):
        return _host(value)
    if isinstance(value, Generator):
        assert executor.generator is not None
        return executor.generator(value.number)
    if isinstance(value, Device):
        return executor.device if value.remote else _HOST
    if isinstance(value, list):
        return [_value(executor, item, values) for item in value]
    return value


def _host(value: Host) -> Any:
    if value.meta.dtype.is_complex:
        return torch.tensor(complex(*value.values), dtype=value.meta.dtype)
    return torch.tensor(value.values, dtype=value.meta.dtype).reshape(value.meta.size)


def flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in flat(item)]
    return [value]
