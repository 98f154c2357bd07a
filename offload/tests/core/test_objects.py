"""Values on their way to the other end: pages, handles, classes, and refused values."""

from __future__ import annotations

import threading
import types
from typing import Any

import numpy as np
import pytest
from offload_ends import Ends, Point

from remotegpu_offload.objects import pages
from remotegpu_offload.objects.codec import Codec, CrossingError, RefusedError, UnknownObjectError


@pytest.fixture
def ends() -> Ends:
    return Ends()


def test_what_is_passed_twice_is_one_object_in_the_acceptor(ends: Ends) -> None:
    shared = np.zeros(100_000)
    (first, again, [third]), travelled = ends.to_acceptor((shared, shared, [shared]))
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
    _, first = ends.to_acceptor(big)
    found, second = ends.to_acceptor(big)
    assert first >= big.nbytes > 100 * second
    np.testing.assert_array_equal(found, big)
    # Only the page with the changed byte.
    big[-1, -1] += 1
    found, third = ends.to_acceptor(big)
    assert pages.SEGMENT <= third < pages.SEGMENT + 10_000
    np.testing.assert_array_equal(found, big)
    text = "t" * 300_000
    assert ends.to_acceptor(text)[1] > 300_000 > 10_000 > ends.to_acceptor([text, 1])[1]
    assert len(ends.client.outgoing) == 0


def test_what_came_by_page_can_be_changed_without_changing_the_page(ends: Ends) -> None:
    value = np.ones(100_000)
    first, _ = ends.to_acceptor(value)
    first[:] = 2
    again, _ = ends.to_acceptor(value)
    assert again.sum() == 100_000


def test_pages_are_forgotten_and_asked_for_again() -> None:
    ends = Ends(remembered=1 << 20)
    arrays = [np.full(50_000, float(n)) for n in range(10)]  # 400 KB each
    for value in arrays * 2:
        np.testing.assert_array_equal(ends.to_acceptor(value)[0], value)
    assert ends.acceptor.cache.bytes <= 1 << 20
    # The two ends may disagree, as when messages overtake each other.
    asked = ends.count_fetches()
    ends.acceptor.cache = pages.Cache(1 << 20)
    np.testing.assert_array_equal(ends.to_acceptor(arrays[-1])[0], arrays[-1])
    assert asked == [1]


def test_a_message_carries_a_bounded_amount_and_the_rest_is_fetched(
    monkeypatch: pytest.MonkeyPatch, ends: Ends
) -> None:
    monkeypatch.setattr(pages, "CARRIED", 1 << 20)
    monkeypatch.setattr(pages, "SEGMENT", 1 << 18)
    value = np.random.default_rng(0).random(1 << 19)  # 4 MiB
    batches = ends.count_fetches()
    found, travelled = ends.to_acceptor(value)
    np.testing.assert_array_equal(found, value)
    assert travelled < 1.1 * (1 << 20) and batches == [4, 4, 4]


def test_an_argument_that_changes_under_way_is_noticed(ends: Ends) -> None:
    value = np.ones(100_000)
    packed = ends.client.dumps(value, paged=True)
    name = packed.header["pages"]["1"][0][0]
    value[0] = 2
    with pytest.raises(ValueError):  # noqa: PT011 - one that is not there is a LookupError
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

    (kind, function, instance), _ = ends.to_acceptor((Local, helper, Local(1)))
    assert isinstance(instance, kind) and function(5) == 15 and instance.total() == 11
    assert ends.to_client([kind, function]) == [Local, helper]
    found = ends.to_client(kind(7))
    assert type(found) is Local and found.total() == 17
    # The same class again is the same class there.
    assert ends.to_acceptor(Local)[0] is kind


def test_an_object_that_stays_in_the_acceptor_is_sent_once(ends: Ends) -> None:
    from remotegpu_offload.objects.encoder import Resident

    model = Point(1.0, [0] * 50_000)
    first, large = ends.to_acceptor(Resident(model))
    first.y.append(9)
    again, small = ends.to_acceptor((Resident(model), Resident(model)))
    assert again[0] is again[1] is first and small < 1000 < large
    assert len(ends.acceptor.exports) == 1
    del model
    # The next message reports it.
    ends.to_acceptor(None)
    assert len(ends.acceptor.exports) == 0
    with pytest.raises(CrossingError, match=r"\bbuiltins\.list\b.*`ref`"):
        ends.client.dumps(Resident([1]))


def test_handles_are_counted_and_let_go(ends: Ends) -> None:
    made: list[str] = []

    class Stand:
        def __init__(self, handle: Any) -> None:
            self._remotegpu_handle = handle

    def stand(handle: Any, info: Any) -> Stand:
        made.append(info)
        return Stand(handle)

    ends.acceptor.proxies["iter"] = stand
    generator = (n for n in range(3))
    first, _ = ends.to_acceptor(generator)
    again, _ = ends.to_acceptor([generator])
    assert again[0] is first and made == ["generator"] and len(ends.client.exports) == 1
    # It is sent again while the acceptor's handle dies: it must live on.
    packed = ends.client.dumps(generator)
    del first, again
    ends.to_client("that they are gone is said here")
    assert len(ends.client.exports) == 1
    third = ends.acceptor.loads(packed.header, packed.buffers)
    del third
    ends.to_client(None)
    assert len(ends.client.exports) == 0


def test_what_could_not_be_sent_leaves_no_handle(ends: Ends) -> None:
    with pytest.raises(CrossingError):
        ends.client.dumps([(n for n in range(3)), threading.Lock()])
    assert len(ends.client.exports) == 0


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [1, threading.Lock()]}, "['a'][1]"),
        (types.SimpleNamespace(inner=types.SimpleNamespace(lock=threading.Lock())), ".inner.lock"),
    ],
)
def test_what_cannot_be_sent_is_named_with_its_place(ends: Ends, value: Any, path: Any) -> None:
    with pytest.raises(CrossingError) as raised:
        ends.client.dumps(value)
    assert raised.value.path == path and "_thread.lock" in raised.value.what


def test_what_a_function_refers_to_is_named_too(ends: Ends) -> None:
    lock = threading.Lock()

    def uses() -> Any:
        return lock

    with pytest.raises(CrossingError) as raised:
        ends.client.dumps(uses)
    assert raised.value.path.strip() == "-> lock"


def test_too_deep_a_value_is_named(ends: Ends) -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(CrossingError):
        ends.client.dumps(deep)


def test_handles_of_another_session_are_refused(ends: Ends) -> None:
    with pytest.raises(UnknownObjectError, match="5"):
        ends.acceptor.exports.get(5)
    ends.acceptor.exports.place(1, object(), "object")
    with pytest.raises(ValueError, match=r"\b1\b"):
        ends.acceptor.exports.place(1, object(), "object")


def test_an_unknown_class_is_refused_in_a_sentence(ends: Ends) -> None:
    import http.cookies

    with pytest.raises(RefusedError, match=r"\bhttp\.cookies\.Morsel\b.*\btrust: full\b"):
        ends.to_client(http.cookies.Morsel())
    full = Codec(client=True, trusted=True)
    packed = ends.acceptor.dumps(http.cookies.Morsel())
    assert type(full.loads(packed.header, packed.buffers)) is http.cookies.Morsel


def test_a_class_is_taken_once_it_has_been_sent() -> None:
    ends = Ends()
    ends.client._policy._packages.clear()
    with pytest.raises(RefusedError, match="Point"):
        ends.to_client(Point(1.0, []))
    assert ends.both(Point(1.0, [2])) == Point(1.0, [2])
