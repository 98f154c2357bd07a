"""The format of tensors and operations between client and acceptor. Pure: does no I/O.

A batch is a byte string: a u64 number of the batch, then entries. Each entry is a u32 template number and the values in
that template's format. An operation's template holds all parts that do not change (name, shapes, strides, types,
constants), so that one call of `add` takes 28 bytes: the template and three addresses.
"""

import json
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch

SHIFT: Final = 40
"""An address is a slot shifted by this many bits, plus bytes into the storage: so no storage is larger than 1 TiB."""

FLOOR: Final = 1 << 48
"""No smaller address is a remote one. User space ends at 2^47, so a remote address is never that of memory here."""

FIRST_THERE: Final = 1 << 62 - SHIFT
"""Slots from here on are taken by the acceptor, for what functions return. torch takes addresses below 2^63."""

# Entries that are not operations. All other numbers are templates, which the client numbers.
FREE, TEMPLATE, ALLOCATE, PUT, RESIZE, FORGET = range(6)
FIRST_TEMPLATE: Final = 16

BATCH: Final = struct.Struct("<Q")
ENTRY: Final = struct.Struct("<I")
FREE_ENTRY: Final = struct.Struct("<IQ")  # address
TEMPLATE_ENTRY: Final = struct.Struct("<II")  # length of the following JSON
ALLOCATE_ENTRY: Final = struct.Struct("<IQQ")  # address, bytes
PUT_ENTRY: Final = struct.Struct("<IQQ")  # address, bytes; the data is the next buffer of the message
RESIZE_ENTRY: Final = struct.Struct("<IQQQ")  # address, new address of the same storage, bytes
FORGET_ENTRY: Final = ENTRY

PAGE: Final = 256 << 20
"""Largest piece of a storage in one message, in bytes."""

_NAMES: Final = {
    value: name
    for name, value in vars(torch).items()
    if isinstance(value, torch.dtype) and str(value) == f"torch.{name}"
}
_DTYPES: Final = {name: value for value, name in _NAMES.items()}
_FLAGS: Final = {
    "layout": {str(value): value for value in vars(torch).values() if isinstance(value, torch.layout)},
    "memory_format": {str(value): value for value in vars(torch).values() if isinstance(value, torch.memory_format)},
}


class Meta(NamedTuple):
    """The description from which torch makes a tensor on a storage.

    Strides count elements; conj and neg are lazy bits.
    """

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    conj: bool = False
    neg: bool = False

    @property
    def nbytes(self) -> int:
        """The minimal size in bytes of a storage for this tensor."""
        if 0 in self.size:
            return 0
        last = sum((n - 1) * s for n, s in zip(self.size, self.stride, strict=True))
        return (1 + last) * int(self.dtype.itemsize)

    def __str__(self) -> str:
        return f"{_NAMES[self.dtype]}{list(self.size)}"


class Tensor(NamedTuple):
    """A tensor among an operation's values: the index of its address, and its layout."""

    at: int
    meta: Meta


class Number(NamedTuple):
    """A number among an operation's values.

    With a dtype it is a tensor without dimensions on the host, otherwise a plain number.
    """

    at: int
    dtype: torch.dtype | None


class Host(NamedTuple):
    """A small tensor that is on the host at both ends, such as the lengths of sequences."""

    meta: Meta
    values: list[Any]


class Device(NamedTuple):
    """The acceptor's device if `remote`, otherwise the acceptor's host."""

    remote: bool


class Generator(NamedTuple):
    """A random number generator, by the client's id."""

    number: int


def meta_to_json(meta: Meta) -> list[Any]:
    return [_NAMES[meta.dtype], list(meta.size), list(meta.stride), int(meta.conj) | int(meta.neg) << 1]


def meta_from_json(value: Any) -> Meta:
    """Parses the description of a tensor. Raises ValueError if it is invalid."""
    try:
        name, size, stride, bits = value
        if len(size) != len(stride) or not all(type(n) is int and n >= 0 for n in (*size, *stride)):
            raise ValueError(f"no tensor has sizes {size} and strides {stride}")
        return Meta(_DTYPES[name], tuple(size), tuple(stride), bool(bits & 1), bool(bits & 2))
    except (KeyError, TypeError) as error:
        raise ValueError(f"not the description of a tensor: {value!r}") from error


def to_json(value: Any) -> Any:  # noqa: PLR0911 (one return for each kind of argument)
    """Encodes an argument of an operation. Raises TypeError for an argument that cannot be sent."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor):
        return {"t": value.at, "m": meta_to_json(value.meta)}
    if isinstance(value, Number):
        return {"n": value.at, "d": value.dtype and _NAMES[value.dtype]}
    if isinstance(value, Host):
        return {"h": meta_to_json(value.meta), "v": value.values}
    if isinstance(value, Device):
        return {"r": value.remote}
    if isinstance(value, Generator):
        return {"g": value.number}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, complex):
        return {"c": [value.real, value.imag]}
    if isinstance(value, torch.dtype):
        return {"d": _NAMES[value]}
    for kind in _FLAGS:
        if isinstance(value, getattr(torch, kind)):
            return {kind: str(value)}
    raise TypeError(f"a {type(value).__name__} cannot be an argument of an operation on the remote device")


def from_json(value: Any) -> Any:  # noqa: PLR0911 - one return for each kind
    """Decodes the result of `to_json`. Raises ValueError for any other input."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    try:
        match value:
            case {"t": int(index), "m": meta}:
                return Tensor(index, meta_from_json(meta))
            case {"n": int(index), "d": name}:
                return Number(index, name and _DTYPES[name])
            case {"h": meta, "v": list(values)}:
                return Host(meta_from_json(meta), values)
            case {"r": bool(remote)}:
                return Device(remote)
            case {"g": int(number)}:
                return Generator(number)
            case {"c": [real, imag]}:
                return complex(real, imag)
            case {"d": name}:
                return _DTYPES[name]
        (kind, name), *rest = value.items()
        if not rest:
            return _FLAGS[kind][name]
    except (KeyError, TypeError) as error:
        raise ValueError(f"not an argument of an operation: {value!r}") from error
    raise ValueError(f"not an argument of an operation: {value!r}")


class Template(NamedTuple):
    """An operation with all parts except addresses and numbers that change.

    `form` is struct's format of the values, without the template's number. Each item of `outs` describes a new result;
    None stands for a result that is an argument or absent. `outs` itself is None if only the acceptor can know the
    results: then the last `leased` values are addresses for them.
    """

    number: int
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    form: str
    outs: tuple[Meta | None, ...] | None
    leased: int = 0

    def encode(self) -> bytes:
        """Encodes the entry that sends the template to the acceptor."""
        text = json.dumps(
            [
                self.number,
                self.name,
                to_json(self.args),
                {name: to_json(value) for name, value in self.kwargs.items()},
                self.form,
                None if self.outs is None else [meta and meta_to_json(meta) for meta in self.outs],
                self.leased,
            ],
            separators=(",", ":"),
        ).encode()
        return TEMPLATE_ENTRY.pack(TEMPLATE, len(text)) + text

    @staticmethod
    def decode(text: bytes) -> "Template":
        """Decodes a template. Raises ValueError if it is invalid."""
        try:
            fields = json.loads(text)
            if not isinstance(fields, list) or len(fields) != len(Template._fields):
                raise ValueError("not a template: it has other fields")
            number, name, args, kwargs, form, outs, leased = fields
            if number < FIRST_TEMPLATE or set(form) - set("Qdq?"):
                raise ValueError(f"not a template: {number!r}, {form!r}")
            return Template(
                int(number),
                str(name),
                tuple(from_json(args)),
                {str(key): from_json(value) for key, value in kwargs.items()},
                str(form),
                None if outs is None else tuple(meta and meta_from_json(meta) for meta in outs),
                int(leased),
            )
        except (TypeError, AttributeError) as error:
            raise ValueError(f"not a template: {error}") from error


def walk(value: Any, visit: Callable[[Any], Any]) -> Any:
    """Returns the same structure with every leaf replaced by the result of `visit`."""
    if type(value) in {list, tuple}:
        return type(value)(walk(item, visit) for item in value)
    if type(value) is dict:
        return {key: walk(item, visit) for key, item in value.items()}
    return visit(value)


def describe(name: str, metas: Sequence[Meta]) -> str:
    """Describes an operation for users: `aten::add.Tensor(float32[3, 4], float32[4])`."""
    return f"{name}({', '.join(map(str, metas))})"
