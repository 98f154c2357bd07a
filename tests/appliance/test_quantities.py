"""Parsing and formatting of the quantities that users write for a share."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remotegpu.api.quantities import (
    Ask,
    QuantityError,
    format_bytes,
    format_milli,
    format_quantity,
    parse_fraction,
    parse_memory,
    parse_quantity,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.25", Ask(1, 250)),
        (".5", Ask(1, 500)),
        ("1", Ask(1, 1000)),
        ("1.0", Ask(1, 1000)),
        (" 0.001 ", Ask(1, 1)),
        ("2", Ask(2)),
        ("25e-2", Ask(1, 250)),
    ],
)
def test_fractions(text: str, expected: Ask) -> None:
    assert parse_fraction(text) == expected


@pytest.mark.parametrize(
    "text",
    ["0", "-1", "1.5", "abc", "", "nan", "inf", "1e-9", "0.0005", "1e99999", "0x1", "1,5", "\u0661.\u0665"],
)
def test_no_fractions(text: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_fraction(text)
    assert "0.25" in str(caught.value)
    assert text in str(caught.value)


@given(st.integers(1, 1000))
def test_every_thousandth_survives(milli: int) -> None:
    assert parse_fraction(format_milli(milli)) == Ask(1, milli)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (1500, "1500"), (2048, "2Ki"), (5 << 30, "5Gi"), (1536 << 20, "1536Mi")]
)
def test_quantities_are_written_as_kubernetes_does(count: int, text: str) -> None:
    assert format_quantity(count) == text


@given(st.integers(0, 1 << 50))
def test_every_number_of_bytes_survives(count: int) -> None:
    assert parse_quantity(format_quantity(count)) == count


@given(st.text(max_size=20))
def test_any_text_is_a_share_or_refused(text: str) -> None:
    for parse in (parse_fraction, parse_memory):
        try:
            parse(text)
        except QuantityError as error:
            assert str(error)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4GiB", 4 << 30), ("4Gi", 4 << 30), ("4G", 4 * 10**9), ("4GB", 4 * 10**9), ("512MiB", 512 << 20),
     ("4e9", 4 * 10**9), ("1048576", 1 << 20), ("1.5GiB", 3 << 29), ("10B", 10), ("2 TiB", 2 << 40),
     ("4k", 4000), ("4K", 4000)],
)  # fmt: skip
def test_memory(text: str, expected: int) -> None:
    assert parse_memory(text) == expected


@pytest.mark.parametrize("text", ["0", "-5", "lots", "9EiB", "4gib", "1e99", "", "GiB", "1.2.3", "9999999999TiB"])
def test_no_memory(text: str) -> None:
    with pytest.raises(QuantityError, match=re.escape(repr(text))):
        parse_memory(text)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 29, "1.5 GiB"), (5 << 40, "5.0 TiB")]
)
def test_bytes_for_people(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.25", "0.25"),
        ("250m", "0.25"),
        ("250e-3", "0.25"),
        ("100u", "0.0001"),
        ("1k", "1000"),
        ("-1", "-1"),
        (".5", "0.5"),
        ("4Gi", str(4 << 30)),
        ("1E", "1e18"),
        ("1E2", "100"),
    ],
)
def test_quantities_of_the_kubernetes_api(text: str, expected: str) -> None:
    assert parse_quantity(text) == Decimal(expected)


@pytest.mark.parametrize("text", ["", "abc", "1.2.3", "1 Gi", "1gb", "0x1", "\u0661", "1e19", "16Ei", "-1e20", "1E310"])
def test_no_quantities(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_quantity(text)
