"""Values from one end to the other and back: equal, with the same sharing, and only what is lacking travels."""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import pathlib
import pickle
import threading
import types
import uuid
import zoneinfo
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from remotegpu.offload.objects import pages
from remotegpu.offload.objects.codec import Codec, CrossingError, RefusedError, UnknownObjectError
from remotegpu.offload.objects.plain import is_plain


class Colour(enum.Enum):
    RED = 1
    GREEN = "green"


class Mode(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Point:
    x: float
    y: list[Any]


class Slotted:
    __slots__ = ("a",)

    def __init__(self, a: Any) -> None:
        self.a = a

    def __eq__(self, other: Any) -> Any:
        return type(other) is Slotted and other.a == self.a

    __hash__ = None  # type: ignore[assignment]


Pair = collections.namedtuple("Pair", "left right")


class Ends:
    """Both ends' codecs in one process."""

    def __init__(self, **options: Any) -> None:
        self.client = Codec(client=True, trusted=False, packages={"test_offload_objects"}, **options)
        self.acceptor = Codec(client=False, **options)
        self.acceptor.fetch = lambda hold, names: self.client.outgoing.pages(hold, names)

    def there(self, value: Any) -> Any:
        """What the acceptor gets; and how many bytes have travelled."""
        packed = self.client.dumps(value, paged=True)
        try:
            return self.acceptor.loads(packed.header, packed.buffers), sum(map(len, packed.buffers))
        finally:
            self.client.sent(packed)

    def back(self, value: Any) -> Any:
        """What the client gets."""
        packed = self.acceptor.dumps(value)
        return self.client.loads(packed.header, [bytearray(buffer) for buffer in packed.buffers])

    def count_fetches(self) -> list[int]:
        """For each time that the acceptor asks for pages, how many."""
        counts: list[int] = []
        fetch = self.acceptor.fetch

        def counted(hold: int, names: list[str]) -> Any:
            counts.append(len(names))
            return fetch(hold, names)

        self.acceptor.fetch = counted
        return counts

    def both(self, value: Any) -> Any:
        return self.back(self.there(value)[0])


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


def test_what_is_passed_twice_is_one_object_there(ends: Ends) -> None:
    shared = np.zeros(100_000)
    (first, again, [third]), travelled = ends.there((shared, shared, [shared]))
    assert first is again is third
    assert travelled < 1.1 * shared.nbytes


def test_cycles_survive(ends: Ends) -> None:
    value: list[object] = [1]
    value.append(value)
    found = ends.both(value)
    assert found[1] is found
    point = Point(1.0, [])
    point.y.append(point)
    found = ends.both(point)
    assert found.y[0] is found


def test_only_pages_that_the_other_end_lacks_travel(ends: Ends) -> None:
    big = np.random.default_rng(0).random((3, 1 << 19))  # 12 MiB
    _, first = ends.there(big)
    found, second = ends.there(big)
    assert first >= big.nbytes > 100 * second
    np.testing.assert_array_equal(found, big)
    # Only the page with the changed byte.
    big[-1, -1] += 1
    found, third = ends.there(big)
    assert pages.SEGMENT <= third < pages.SEGMENT + 10_000
    np.testing.assert_array_equal(found, big)
    text = "t" * 300_000
    assert ends.there(text)[1] > 300_000 > 10_000 > ends.there([text, 1])[1]
    assert len(ends.client.outgoing) == 0


def test_what_came_by_page_can_be_changed_without_changing_the_page(ends: Ends) -> None:
    value = np.ones(100_000)
    first, _ = ends.there(value)
    first[:] = 2
    again, _ = ends.there(value)
    assert again.sum() == 100_000


def test_pages_are_forgotten_and_asked_for_again() -> None:
    ends = Ends(remembered=1 << 20)
    arrays = [np.full(50_000, float(n)) for n in range(10)]  # 400 KB each
    for value in arrays * 2:
        np.testing.assert_array_equal(ends.there(value)[0], value)
    assert ends.acceptor.cache.bytes <= 1 << 20
    # The two ends may disagree, as when messages overtake each other.
    asked = ends.count_fetches()
    ends.acceptor.cache = pages.Cache(1 << 20)
    np.testing.assert_array_equal(ends.there(arrays[-1])[0], arrays[-1])
    assert asked == [1]


def test_a_message_carries_a_bounded_amount_and_the_rest_is_fetched(
    monkeypatch: pytest.MonkeyPatch, ends: Ends
) -> None:
    monkeypatch.setattr(pages, "CARRIED", 1 << 20)
    monkeypatch.setattr(pages, "SEGMENT", 1 << 18)
    value = np.random.default_rng(0).random(1 << 19)  # 4 MiB
    batches = ends.count_fetches()
    found, travelled = ends.there(value)
    np.testing.assert_array_equal(found, value)
    assert travelled < 1.1 * (1 << 20) and batches == [4, 4, 4]


def test_an_argument_that_changes_under_way_is_noticed(ends: Ends) -> None:
    value = np.ones(100_000)
    packed = ends.client.dumps(value, paged=True)
    name = packed.header["pages"]["1"][0][0]
    value[0] = 2
    with pytest.raises(ValueError, match="changed by another thread"):
        ends.client.outgoing.pages(packed.hold, [name])
    with pytest.raises(LookupError):
        ends.client.outgoing.pages(packed.hold, ["0" * 32])


def test_functions_and_classes_of_a_function_travel_by_value_and_are_known_again(ends: Ends) -> None:
    base = 10

    class Local:
        def __init__(self, n: Any) -> None:
            self.n = n

        def total(self) -> Any:
            return self.n + base

    def helper(x: Any) -> Any:
        return Local(x).total()

    (kind, function, instance), _ = ends.there((Local, helper, Local(1)))
    assert isinstance(instance, kind) and function(5) == 15 and instance.total() == 11
    assert ends.back([kind, function]) == [Local, helper]
    found = ends.back(kind(7))
    assert type(found) is Local and found.total() == 17
    # The same class again is the same class there.
    assert ends.there(Local)[0] is kind


def test_an_object_that_stays_there_travels_once(ends: Ends) -> None:
    from remotegpu.offload.objects.encoder import There

    model = Point(1.0, [0] * 50_000)
    first, large = ends.there(There(model))
    first.y.append(9)
    again, small = ends.there((There(model), There(model)))
    assert again[0] is again[1] is first and small < 1000 < large
    assert len(ends.acceptor.exports) == 1
    del model
    # The next message says that it is gone.
    ends.there(None)
    assert len(ends.acceptor.exports) == 0
    with pytest.raises(CrossingError, match="weak reference"):
        ends.client.dumps(There([1]))


def test_handles_are_counted_and_let_go(ends: Ends) -> None:
    made: list[str] = []

    class Stand:
        def __init__(self, handle: Any) -> None:
            self._remotegpu_handle = handle

    def stand(handle: Any, info: Any) -> Stand:
        made.append(info)
        return Stand(handle)

    ends.acceptor.stand_ins["iter"] = stand
    generator = (n for n in range(3))
    first, _ = ends.there(generator)
    again, _ = ends.there([generator])
    assert again[0] is first and made == ["generator"] and len(ends.client.exports) == 1
    # It is sent again while the acceptor's handle dies: it must live on.
    packed = ends.client.dumps(generator)
    del first, again
    ends.back("that they are gone is said here")
    assert len(ends.client.exports) == 1
    third = ends.acceptor.loads(packed.header, packed.buffers)
    del third
    ends.back(None)
    assert len(ends.client.exports) == 0


def test_what_could_not_be_sent_leaves_no_handle(ends: Ends) -> None:
    with pytest.raises(CrossingError):
        ends.client.dumps([(n for n in range(3)), threading.Lock()])
    assert len(ends.client.exports) == 0


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [1, threading.Lock()]}, "['a'][1], a _thread.lock"),
        (types.SimpleNamespace(inner=types.SimpleNamespace(lock=threading.Lock())), ".inner.lock, a _thread.lock"),
    ],
)
def test_what_cannot_be_sent_is_named_with_its_place(ends: Ends, value: Any, path: Any) -> None:
    with pytest.raises(CrossingError) as raised:
        ends.client.dumps(value)
    assert str(raised.value).startswith(path) and "__getstate__" in str(raised.value)


def test_what_a_function_refers_to_is_named_too(ends: Ends) -> None:
    lock = threading.Lock()

    def uses() -> Any:
        return lock

    with pytest.raises(CrossingError, match=r"^ ?-> lock, a _thread.lock"):
        ends.client.dumps(uses)


def test_too_deep_a_value_is_named(ends: Ends) -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(CrossingError, match="nested too deeply"):
        ends.client.dumps(deep)


def test_handles_of_another_session_are_none(ends: Ends) -> None:
    with pytest.raises(UnknownObjectError, match="no object 5 of this session"):
        ends.acceptor.exports.get(5)
    ends.acceptor.exports.place(1, object(), "object")
    with pytest.raises(ValueError, match="exists already"):
        ends.acceptor.exports.place(1, object(), "object")


def test_an_unknown_class_is_refused_in_a_sentence(ends: Ends) -> None:
    import http.cookies

    with pytest.raises(RefusedError, match=r"http\.cookies\.Morsel, which is not taken.*trust: full"):
        ends.back(http.cookies.Morsel())
    full = Codec(client=True, trusted=True)
    packed = ends.acceptor.dumps(http.cookies.Morsel())
    assert type(full.loads(packed.header, packed.buffers)) is http.cookies.Morsel


def test_a_class_is_taken_once_it_has_been_sent() -> None:
    ends = Ends()
    ends.client._policy._packages.clear()
    with pytest.raises(RefusedError, match="Point"):
        ends.back(Point(1.0, []))
    assert ends.both(Point(1.0, [2])) == Point(1.0, [2])


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
    found = ends.back(value)
    assert found == value and type(found) is type(value)


def test_which_pickles_are_plain() -> None:
    plain = [pickle.dumps(value, 5) for value in LONG]
    assert [is_plain(stream) for stream in plain] == [True] * 6 + [False] * 2
    for value in (Point(1.0, []), [object()], len, 2j, bytearray(9), Colour.RED, slice(1)):
        assert not is_plain(pickle.dumps(value, 5))
    for stream in plain[:6]:
        for broken in (stream[:-1], stream + b".", stream[:-1] + b"r\0\0\0\0.", stream[:-1] + b"Q.", b""):
            assert not is_plain(broken)
