"""Values of every kind from one end to the other and back: equal, and of the same type."""

from __future__ import annotations

import array
import collections
import datetime
import decimal
import fractions
import pathlib
import pickle
import types
import uuid
import zoneinfo
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from offload_ends import Colour, Ends, Mode, Pair, Point, Slotted

from remotegpu_offload.objects.plain import is_plain


@pytest.fixture
def ends() -> Ends:
    return Ends()


PLAIN: list[Any] = [
    None,
    (True, 1, -(1 << 70), 1.5, 2j, "text ü", b"bytes", bytearray(b"x")),
    [[], {}, set(), frozenset((1, 2)), {3, 4}, range(1, 9, 2), slice(1, None), ..., NotImplemented],
    {"a": [1, {"b": (2,)}], 3: None},
    datetime.datetime(2026, 1, 2, 3, tzinfo=datetime.UTC),
    [datetime.date(2026, 1, 2), datetime.timedelta(1, 2), datetime.time(4), zoneinfo.ZoneInfo("Europe/Paris")],
    [
        decimal.Decimal("1.50"),
        fractions.Fraction(2, 6),
        uuid.UUID(int=7),
        pathlib.PurePosixPath("a/b"),
        pathlib.Path("c"),
    ],
    collections.OrderedDict(a=1, b=2),
    collections.Counter("abca"),
    collections.deque([1, 2], 5),
    collections.defaultdict(list, a=[1]),
    [Colour.RED, Colour.GREEN, Mode.READ | Mode.WRITE],
    [Point(1.5, [2]), Pair(1, "b"), Slotted(3)],
    [int, dict, datetime.date, np.float32, np.ndarray],
    array.array("d", [1, 2]),
    types.SimpleNamespace(a=1),
    [ValueError("a", 1), KeyError("k")],
    "l" * 200_000,
    [b"m" * 200_000, bytearray(b"n" * 200_000)],
]


@pytest.mark.parametrize("value", PLAIN, ids=[str(number) for number in range(len(PLAIN))])
def test_plain_values_come_back_equal(ends: Ends, value: Any) -> None:
    found = ends.both(value)
    if "Error" in repr(value):
        assert repr(found) == repr(value)
    else:
        assert found == value and type(found) is type(value)


STRUCTURE = np.dtype([("a", "i4"), ("b", "f8", (2,)), ("c", "S3")], align=True)
ARRAYS: list[Any] = [
    np.arange(6.0).reshape(2, 3),
    np.asfortranarray(np.arange(6, dtype=">i2").reshape(2, 3)),
    np.arange(10)[::2],
    np.zeros((0, 3)),
    np.array(5, "u1"),
    np.array(["a", "longer"]),
    np.array([b"a", b"bc"]),
    np.array([1, "two", None], object),
    np.array(["2026-01-01", "NaT"], "M8[ns]"),
    np.array([3], "m8[D]"),
    np.array([(1, (2.0, 3.0), b"xyz")], STRUCTURE),
    np.array([True, False]),
    np.array([1 + 2j], "c8"),
    np.arange(50_000.0).reshape(100, 500).T,
    np.array([(1, 2)], [("x", "i1"), ("y", "i1")]).view(np.recarray),
]


@pytest.mark.parametrize("value", ARRAYS, ids=[str(number) for number in range(len(ARRAYS))])
def test_arrays_come_back_equal(ends: Ends, value: Any) -> None:
    found = ends.both(value)
    assert found.dtype == value.dtype and found.shape == value.shape and type(found) is type(value)
    np.testing.assert_array_equal(found, value)
    assert found.flags.writeable == value.flags.writeable
    assert found.flags.f_contiguous == (value.flags.f_contiguous or (not value.flags.c_contiguous and value.ndim == 1))


def test_a_read_only_array_stays_one(ends: Ends) -> None:
    value = np.arange(100_000)
    value.flags.writeable = False
    assert not ends.both(value).flags.writeable


@pytest.mark.parametrize(
    "value",
    [
        np.float32(1.5),
        np.int64(3),
        np.str_(""),
        np.bool_(True),
        np.datetime64("2026-01-01"),
        np.array([(1, 2.0)], "i4,f8")[0],
    ],
    ids=repr,
)
def test_scalars_come_back_equal(ends: Ends, value: Any) -> None:
    found = ends.both(value)
    assert type(found) is type(value) and found == value and found.dtype == value.dtype


def test_a_masked_array_comes_back(ends: Ends) -> None:
    value = np.ma.array([1.0, 2.0], mask=[True, False], fill_value=9.0)
    found = ends.both(value)
    assert found.tolist() == [None, 2.0] and found.fill_value == 9.0


@pytest.mark.parametrize("name", ["MT19937", "PCG64", "Philox", "SFC64"])
def test_a_generator_goes_on_where_it_was(ends: Ends, name: Any) -> None:
    value = np.random.Generator(getattr(np.random, name)(3))
    value.random(5)
    assert ends.both(value).random() == value.random()
    legacy = np.random.RandomState(4)
    legacy.normal()
    assert ends.both(legacy).normal() == legacy.normal()


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"])
@pytest.mark.parametrize("kind", ["array", "matrix"])
def test_sparse_matrices_come_back(ends: Ends, form: Any, kind: Any) -> None:
    value = getattr(scipy.sparse, f"{form}_{kind}")(np.diag([1.0, 0, 3]))
    found = ends.both(value)
    assert type(found) is type(value)
    np.testing.assert_array_equal(found.toarray(), value.toarray())


FRAME = pd.DataFrame(
    {
        "n": [1, 2, 3],
        "x": [1.5, None, 2.5],
        "text": ["a", None, "c"],
        "when": pd.to_datetime(["2026-01-01", "2026-01-02", None]),
        "zone": pd.date_range("2026-01-01", periods=3, tz="Europe/Paris"),
        "kind": pd.Categorical(["u", "v", "u"], ordered=True),
        "whole": pd.array([1, None, 3], "Int64"),
        "real": pd.array([1.0, None, 3], "Float64"),
        "flag": pd.array([True, None, False], "boolean"),
        "month": pd.period_range("2026-01", periods=3, freq="M"),
        "object": [[1], {"a": 2}, None],
    },
    index=pd.Index(["i", "j", "k"], name="row"),
)
FRAMES = [
    FRAME,
    pd.DataFrame(np.arange(12.0).reshape(3, 4), columns=list("abcd")),
    pd.DataFrame({"a": [1, 2]}, index=pd.MultiIndex.from_tuples([("x", 1), ("y", 2)], names=["k", "n"])),
    pd.DataFrame({"a": [1.0]}, index=pd.interval_range(0, 1)),
    pd.DataFrame([[1, 2.0]], columns=["same", "same"]),
    pd.DataFrame(),
]


@pytest.mark.parametrize("value", FRAMES, ids=[str(number) for number in range(len(FRAMES))])
def test_frames_come_back_equal(ends: Ends, value: Any) -> None:
    pd.testing.assert_frame_equal(ends.both(value), value, check_freq=True)


def test_series_and_pandas_scalars_come_back(ends: Ends) -> None:
    value = pd.Series([1, 2], index=pd.date_range("2026-01-01", periods=2, freq="D"), name="s")
    value.attrs["unit"] = "m"
    found = ends.both(value)
    pd.testing.assert_series_equal(found, value)
    assert found.attrs == value.attrs and found.index.freqstr == "D"
    stamps = [pd.Timestamp("2026-01-01 10:00", tz="Europe/Paris"), pd.Timedelta("1h"), pd.NaT, pd.NA]
    found = ends.both(stamps)
    assert found[:2] == stamps[:2] and found[2] is pd.NaT and found[3] is pd.NA


LONG: list[Any] = [
    [float(n) for n in range(5000)],
    [(n, -n, n * 1000, str(n), None, True, b"x" * (n % 300)) for n in range(2000)],
    {str(n): [n, {"deep": [n * 1.5]}] for n in range(2000)},
    {n: {n, n + 1} for n in range(2000)},
    [1 << n for n in range(300)] * 9,
    ["word " * 100, "w" * 70_000, b"b" * 300] * 20,
    [{"a": (n,)} for n in range(2000)],
    [frozenset((n,)) for n in range(2000)],
]


@pytest.mark.parametrize("value", LONG, ids=[str(number) for number in range(len(LONG))])
def test_long_plain_values_come_back_equal(ends: Ends, value: Any) -> None:
    found = ends.to_client(value)
    assert found == value and type(found) is type(value)


def test_which_pickles_are_plain() -> None:
    plain = [pickle.dumps(value, 5) for value in LONG]
    assert [is_plain(stream) for stream in plain] == [True] * 6 + [False] * 2
    for value in (Point(1.0, []), [object()], len, 2j, bytearray(9), Colour.RED, slice(1)):
        assert not is_plain(pickle.dumps(value, 5))
    for stream in plain[:6]:
        for broken in (stream[:-1], stream + b".", stream[:-1] + b"r\0\0\0\0.", stream[:-1] + b"Q.", b""):
            assert not is_plain(broken)
