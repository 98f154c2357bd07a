"""Pickles NumPy's values in a form that the reader can check; NumPy's own pickles write memory without checks."""

import pickle
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from remotegpu_offload.objects import restricted
from remotegpu_offload.objects.encoder import Encoder, register

if TYPE_CHECKING:
    from numpy.typing import NDArray

_GENERATORS: Final = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")


@restricted.allow
def dtype(spec: Any) -> "np.dtype[Any]":
    """Makes a dtype from its text; a structured one from a dict with names, formats, offsets, titles and size."""
    if isinstance(spec, str):
        return np.dtype(spec)
    if isinstance(spec, dict):
        if not set(spec) <= {"names", "formats", "offsets", "titles", "itemsize", "aligned"}:
            raise ValueError("not a structured type")
        return np.dtype(spec)  # type: ignore[call-overload,no-any-return]
    base, shape = spec
    if not isinstance(base, np.dtype):
        raise TypeError("not a type")
    return np.dtype((base, tuple(shape)))


@restricted.allow
def array(data: Any, kind: Any, shape: Any, order: Any) -> "NDArray[Any]":
    """Makes an array over these bytes. Raises ValueError for a wrong size, TypeError for an array of objects."""
    if not isinstance(kind, np.dtype) or kind.hasobject:
        raise TypeError("not an array's type")
    if not isinstance(data, bytes | bytearray | memoryview | pickle.PickleBuffer):
        raise TypeError("not an array's bytes")
    made: NDArray[Any] = np.ndarray(shape, kind, buffer=memoryview(data), order="F" if order == "F" else "C")
    if made.nbytes != memoryview(data).nbytes:
        raise ValueError("an array has another size than its bytes")
    return made


@restricted.allow
def objects(values: Any, kind: Any, shape: Any, order: Any) -> "NDArray[Any]":
    """Makes an array of Python objects, or of texts of any length."""
    if not isinstance(values, list) or not isinstance(kind, np.dtype):
        raise TypeError("not an array's objects")
    flat = np.empty(len(values), kind)
    for index, value in enumerate(values):
        flat[index] = value
    return flat.reshape(shape, order="F" if order == "F" else "C")


@restricted.allow
def scalar(data: Any, kind: Any) -> Any:
    """Makes a scalar from its bytes."""
    if not isinstance(kind, np.dtype) or kind.hasobject or not isinstance(data, bytes):
        raise TypeError("not a scalar")
    return np.ndarray(1, kind, buffer=data)[0]


@restricted.allow
def masked(data: Any, mask: Any, fill: Any) -> Any:
    return np.ma.MaskedArray(data, mask=mask, fill_value=fill)


@restricted.allow
def generator(name: Any, state: Any) -> Any:
    """Makes a bit generator with this state. Raises ValueError for an invalid state."""
    if name not in _GENERATORS:
        raise ValueError(f"{name!r} is no bit generator")
    made = getattr(np.random, name)()
    # NumPy does not check these indexes into the key and the buffer.
    inner = state.get("state", {})
    for where, limit in ((inner, 624 if name == "MT19937" else None), (state, 4)):
        at = where.get("pos" if where is inner else "buffer_pos") if isinstance(where, dict) else None
        if limit is not None and at is not None and not (isinstance(at, int) and 0 <= at <= limit):
            raise ValueError("not a generator's position")
    made.state = state
    return made


@restricted.allow
def random(bits: Any, legacy: Any) -> Any:
    """Makes a Generator with this bit generator, or a RandomState if `legacy` is given."""
    if not isinstance(bits, np.random.BitGenerator):
        raise TypeError("not a bit generator")
    if legacy is None:
        return np.random.Generator(bits)
    made = np.random.RandomState(bits)
    made.set_state(legacy)
    return made


@restricted.allow
def ufunc(name: Any) -> Any:
    """Returns numpy.NAME. Raises TypeError unless it is a ufunc."""
    found = vars(np).get(name)
    if not isinstance(found, np.ufunc):
        raise TypeError(f"{name!r} is no ufunc")
    return found


class _View:
    """An array that is sent as a part of another array's memory."""

    __slots__ = ("array", "base")

    def __init__(self, array: "NDArray[Any]", base: "NDArray[Any]") -> None:
        self.array = array
        self.base = base


def view(base: Any, kind: Any, offset: int, shape: Any, strides: Any) -> "NDArray[Any]":
    """Makes an array that is a part of another array's memory. Unchecked, so only the acceptor may execute it."""
    return np.ndarray(shape, kind, buffer=base, offset=offset, strides=strides)


def _reduce_view(_encoder: Encoder, value: _View) -> Any:
    part, base = value.array, value.base
    offset = part.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return view, (base, part.dtype, offset, part.shape, part.strides)


def sharing(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the arguments, prepared so that arrays that share memory here also share it in the acceptor."""
    places = [place for place, value in enumerate(arguments) if type(value) is np.ndarray and value.size]
    sent = list(arguments)
    for place in places:
        part, base = arguments[place], _base(arguments[place])
        others = [arguments[other] for other in places if arguments[other] is not part]
        if part is base or base.dtype.hasobject or not base.flags.c_contiguous:
            continue
        if any(_base(other) is base and np.may_share_memory(other, part) for other in others):
            sent[place] = _View(part, base)
    return tuple(sent)


def _base(array: "NDArray[Any]") -> "NDArray[Any]":
    """Returns the array that owns the memory."""
    while type(array.base) is np.ndarray:
        array = array.base
    return array


def _reduce_dtype(_encoder: Encoder, value: "np.dtype[Any]") -> Any:
    if value.subdtype is not None:
        return dtype, (value.subdtype,)
    if value.fields is None:
        if not type(value).__module__.startswith("numpy"):
            return NotImplemented
        return dtype, (value.str if value.kind != "T" else "T",)
    names = value.names or ()
    spec = {
        "names": list(names),
        "formats": [value.fields[name][0] for name in names],
        "offsets": [value.fields[name][1] for name in names],
        "titles": [(*value.fields[name], None)[2] for name in names],
        "itemsize": value.itemsize,
        "aligned": value.isalignedstruct,
    }
    return dtype, (spec,)


def _reduce_array(encoder: Encoder, value: "NDArray[Any]") -> Any:
    if isinstance(value, np.ma.MaskedArray):
        return masked, (np.asarray(value.data), np.ma.getmaskarray(value), value.fill_value)
    if type(value) not in (np.ndarray, np.memmap):
        return NotImplemented if encoder.codec.client else _as_base(value)
    value = np.asarray(value)
    order: Literal["C", "F"] = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
    if value.dtype.hasobject or value.dtype.kind == "T":
        return objects, (list(value.ravel(order=order)), value.dtype, value.shape, order)
    flat = np.ascontiguousarray(value.T if order == "F" else value)
    # Sent as bytes, because arrays of dates and structures do not offer a buffer.
    data: Any = np.ndarray(flat.nbytes, np.uint8, buffer=flat) if flat.nbytes else bytearray()
    return array, (pickle.PickleBuffer(data), value.dtype, value.shape, order)


def _as_base(value: "NDArray[Any]") -> Any:
    if isinstance(value, np.recarray):
        return array_as, ("recarray", value.view(np.ndarray))
    if isinstance(value, np.matrix):
        return array_as, ("matrix", value.view(np.ndarray))
    return NotImplemented


@restricted.allow
def array_as(kind: Any, base: Any) -> Any:
    """Makes one of NumPy's own subclasses of its array."""
    if kind not in {"recarray", "matrix"} or not isinstance(base, np.ndarray):
        raise TypeError("not an array of a kind that is known")
    return base.view(getattr(np, kind))


def _reduce_scalar(_encoder: Encoder, value: np.generic) -> Any:
    if value.dtype.hasobject:
        return NotImplemented
    if not type(value).__module__.startswith("numpy"):
        return NotImplemented
    return scalar, (value.tobytes(), value.dtype)


def _reduce_bits(_encoder: Encoder, value: np.random.BitGenerator) -> Any:
    name = type(value).__name__
    return (generator, (name, value.state)) if name in _GENERATORS else NotImplemented


def _reduce_random(_encoder: Encoder, value: Any) -> Any:
    if isinstance(value, np.random.Generator):
        return random, (value.bit_generator, None)
    return random, (value._bit_generator, value.get_state(legacy=False))


def _reduce_ufunc(_encoder: Encoder, value: np.ufunc) -> Any:
    return (ufunc, (value.__name__,)) if vars(np).get(value.__name__) is value else NotImplemented


register(np.dtype, _reduce_dtype)
register(np.ndarray, _reduce_array)
register(np.generic, _reduce_scalar)
register(np.random.BitGenerator, _reduce_bits)
register(np.random.Generator, _reduce_random)
register(np.random.RandomState, _reduce_random)
register(_View, _reduce_view)
register(np.ufunc, _reduce_ufunc)
for _kind in {*np.sctypeDict.values(), np.ndarray, np.generic, np.number, np.integer, np.floating, np.inexact}:
    restricted.allow_type(_kind)
