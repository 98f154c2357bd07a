"""Pickles pandas' frames, series and indexes as arrays, from which their constructors rebuild them."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pandas as pd

from remotegpu_offload.objects import restricted
from remotegpu_offload.objects.encoder import Encoder, register

_MASKED: Final = {
    "integer": pd.arrays.IntegerArray,
    "floating": pd.arrays.FloatingArray,
    "boolean": pd.arrays.BooleanArray,
}


@restricted.allow
def column(kind: Any, parts: Any) -> Any:
    """Makes a pandas array of a kind that NumPy lacks."""
    match kind:
        case "categorical":
            codes, categories, ordered = parts
            return pd.Categorical.from_codes(codes, categories=categories, ordered=bool(ordered))
        case "datetime":
            # Times since 1970 in UTC, in the dtype's unit.
            stamps, zone = parts
            return pd.DatetimeIndex(stamps).tz_localize("UTC").tz_convert(zone).array
        case "integer" | "floating" | "boolean":
            return _MASKED[kind](*parts)
        case "text":
            texts, storage, missing = parts
            return pd.array(texts, dtype=pd.StringDtype(str(storage), na_value=np.nan if missing == "nan" else pd.NA))
        case "period":
            ordinals, frequency = parts
            return pd.PeriodIndex.from_ordinals(ordinals, freq=str(frequency)).array
        case "interval":
            left, right, closed = parts
            return pd.arrays.IntervalArray.from_arrays(left, right, closed=str(closed))
    raise TypeError("not a pandas array of a kind that is known")


@restricted.allow
def index(kind: Any, parts: Any, names: Any) -> Any:
    """Makes an index of pandas."""
    match kind:
        case "range":
            return pd.RangeIndex(*(int(part) for part in parts), name=names)
        case "multi":
            levels, codes = parts
            return pd.MultiIndex(levels=levels, codes=codes, names=list(names), verify_integrity=True)
        case "plain":
            values, frequency = parts
            made = pd.Index(values, name=names, copy=False)
            if frequency is not None:
                made.freq = pd.tseries.frequencies.to_offset(str(frequency))
            return made
    raise TypeError("not an index of a kind that is known")


@restricted.allow
def series(values: Any, axis: Any, name: Any, attributes: Any) -> Any:
    made = pd.Series(values, index=axis, name=name, copy=False)
    made.attrs.update(attributes)
    return made


@restricted.allow
def frame(columns: Any, values: Any, axis: Any, attributes: Any) -> Any:
    """Makes a frame, from one array for all columns or from a list of one array for each column."""
    if isinstance(values, list):
        made = pd.DataFrame(dict(enumerate(values)), index=axis, copy=False)
        made.columns = columns
    else:
        made = pd.DataFrame(values, index=axis, columns=columns, copy=False)
    made.attrs.update(attributes)
    return made


@restricted.allow
def stamp(kind: Any, value: Any, unit: Any, zone: Any) -> Any:
    """Makes a pandas scalar: a Timestamp, a Timedelta or a missing value."""
    match kind:
        case "NaT":
            return pd.NaT
        case "NA":
            return pd.NA
        case "Timedelta":
            return pd.Timedelta(np.array(int(value), "i8").view(f"m8[{unit}]")[()])
        case "Timestamp":
            made = pd.Timestamp(np.array(int(value), "i8").view(f"M8[{unit}]")[()])
            return made if zone is None else made.tz_localize("UTC").tz_convert(zone)
    raise TypeError("not a pandas scalar of a kind that is known")


_PARTS: Final[tuple[tuple[type, str, Callable[[Any], Any]], ...]] = (
    (pd.Categorical, "categorical", lambda array: (array.codes, array.categories, array.ordered)),
    (pd.arrays.IntegerArray, "integer", lambda array: (array._data, array._mask)),
    (pd.arrays.FloatingArray, "floating", lambda array: (array._data, array._mask)),
    (pd.arrays.BooleanArray, "boolean", lambda array: (array._data, array._mask)),
    (pd.arrays.PeriodArray, "period", lambda array: (array.asi8, array.freqstr)),
    (pd.arrays.IntervalArray, "interval", lambda array: (array.left, array.right, array.closed)),
)


def _parts(array: Any) -> Any:
    """Returns the kind and parts of a pandas array; None if NumPy has this kind."""
    for kind, name, parts in _PARTS:
        if isinstance(array, kind):
            return name, parts(array)
    if isinstance(array, pd.arrays.DatetimeArray) and array.tz is not None:
        return "datetime", (array.tz_convert("UTC").tz_localize(None).to_numpy(), _zone(array.tz))
    if isinstance(array.dtype, pd.StringDtype):
        missing = "nan" if array.dtype.na_value is not pd.NA else "NA"
        texts = [None if gone else text for gone, text in zip(array.isna(), array.to_numpy(object), strict=True)]
        return "text", (texts, array.dtype.storage, missing)
    return None


def _zone(zone: Any) -> Any:
    """Returns the name of a named time zone; a fixed offset unchanged."""
    return str(zone) if hasattr(zone, "key") or hasattr(zone, "zone") else zone


def _plain(array: Any) -> Any:
    """Returns the array as a NumPy array if NumPy has its kind; otherwise unchanged."""
    return array if _parts(array) is not None else np.asarray(array)


def _reduce_array(_encoder: Encoder, value: Any) -> Any:
    parts = _parts(value)
    return NotImplemented if parts is None else (column, parts)


def _reduce_index(_encoder: Encoder, value: Any) -> Any:
    if isinstance(value, pd.RangeIndex):
        return index, ("range", (value.start, value.stop, value.step), value.name)
    if isinstance(value, pd.MultiIndex):
        codes = [np.asarray(each) for each in value.codes]
        return index, ("multi", (list(value.levels), codes), list(value.names))
    return index, ("plain", (_plain(value.array), getattr(value, "freqstr", None)), value.name)


def _reduce_series(_encoder: Encoder, value: Any) -> Any:
    if type(value) is not pd.Series:
        return NotImplemented
    return series, (_plain(value.array), value.index, value.name, value.attrs)


def _reduce_frame(_encoder: Encoder, value: Any) -> Any:
    if type(value) is not pd.DataFrame:
        return NotImplemented
    kinds = set(value.dtypes)
    values: Any
    if len(kinds) == 1 and isinstance(next(iter(kinds)), np.dtype):
        values = value.to_numpy()
    else:
        values = [_plain(value.iloc[:, at].array) for at in range(value.shape[1])]
    return frame, (value.columns, values, value.index, value.attrs)


def _reduce_stamp(_encoder: Encoder, value: Any) -> Any:
    if value is pd.NaT or value is pd.NA:
        return stamp, ("NaT" if value is pd.NaT else "NA", None, None, None)
    kind = "Timedelta" if isinstance(value, pd.Timedelta) else "Timestamp"
    return stamp, (
        kind,
        value.asm8.view("i8").item(),
        value.unit,
        _zone(value.tz) if kind == "Timestamp" and value.tz else None,
    )


register(pd.DataFrame, _reduce_frame)
register(pd.Series, _reduce_series)
register(pd.Index, _reduce_index)
register(pd.api.extensions.ExtensionArray, _reduce_array)
for _kind in (pd.Timestamp, pd.Timedelta, type(pd.NaT), type(pd.NA)):
    register(_kind, _reduce_stamp)
