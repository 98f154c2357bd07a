"""The content of each version of the wire protocol, and that it never changes."""

from typing import Any

import pytest
from remotegpu_codegen import wire
from remotegpu_codegen.registry import Registry, RegistryError, driver_functions

FILL = {
    "number": 7,
    "symbol": "cuFillAsync_v2",
    "since": 3020,
    "class": "async",
    "client": "handwritten",
    "parameters": ["dptr address", "u8 value", "size count", "stream stream"],
}
FILL_NOW = FILL | {"number": 8, "symbol": "cuFill", "wire": "cuFillAsync_v2", "parameters": []}
ASK = {
    "number": 9,
    "symbol": "cuAsk",
    "since": 3020,
    "class": "sync",
    "parameters": ["out size answer", "function kernel", "i32 blocks"],
}
MESSAGES = """
record! {
    /// A size.
    struct Size { width: u64, height: u64 }
}
messages! {
    /// Names whom it is for.
    0x8000 Open { name: String, pairs: Vec<(u32, u64)> }
    /// Tail: the bytes.
    0x8040 Copy tail {
        // Two lines, and a comma at the end.
        address: u64,
        sizes: [Size; 2],
    }
    0xc000 Reply tail { code: u32 }
}
"""


def now(messages: str = MESSAGES, *functions: dict[str, Any]) -> dict[str, str]:
    return wire.shapes(messages, Registry(driver_functions({"a group": list(functions or (FILL, ASK))}), ()))


def test_everything_that_travels_has_a_shape() -> None:
    assert now() == {
        "Open": "0x8000 Open {name: String, pairs: Vec<(u32, u64)>}",
        "Copy": "0x8040 Copy tail {address: u64, sizes: [Size; 2]}",
        "Reply": "0xc000 Reply tail {code: u32}",
        "Size": "struct Size {width: u64, height: u64}",
        "cuFillAsync_v2": "7 cuFillAsync_v2 async (dptr address, u8 value, size count, stream stream)",
        "cuAsk": "9 cuAsk sync (out size answer, function kernel, i32 blocks)",
    }


def test_what_does_not_travel_changes_nothing() -> None:
    refused = {"number": 20, "symbol": "cuNo", "since": 2000, "class": "refused", "reason": "it is not provided"}
    assert now(MESSAGES.replace("Names", "Says"), ASK, FILL, FILL_NOW, refused) == now()


def test_what_is_new_is_there_since_the_newest_version() -> None:
    first = wire.extend({}, now(), 10)
    more = MESSAGES.replace("0xc000", "0xc010 Notice { line: String }\n    0xc000")
    second = wire.extend(first, now(more, FILL, ASK, ASK | {"number": 11, "symbol": "cuTell"}), 11)
    assert {name for name, row in second.items() if row.since == 11} == {"Notice", "cuTell"}
    assert {name: row for name, row in second.items() if row.since == 10} == first
    assert wire.parse(wire.render(second)) == second
    rust = wire.rust(second, wire.Versions(newest=11, oldest=10))
    assert "0xc010 => 11," in rust and "        11 => 11," in rust
    assert rust.count(f"0x{wire.table_hash(first, 10)}") == 1, "version 10 is what it was"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("name: String", "name: u32"),
        ("Reply tail", "Reply"),
        ("0x8040 Copy", "0x8041 Copy"),
        ("width: u64, ", ""),
        ("0xc000 Reply tail { code: u32 }", ""),
    ],
)
def test_what_an_older_version_has_neither_changes_nor_goes(before: str, after: str) -> None:
    lock = wire.extend({}, now(), 10)
    changed = now(MESSAGES.replace(before, after))
    with pytest.raises(RegistryError, match="wire version 10"):
        wire.extend(lock, changed, 11)
    assert wire.extend(lock, changed, 10) != lock, "what is not released yet may change"
    assert wire.table_hash(wire.extend(lock, changed, 10), 10) != wire.table_hash(lock, 10)


def test_a_functions_parameters_do_not_change_either() -> None:
    lock = wire.extend({}, now(), 10)
    other = FILL | {"parameters": ["dptr address", "u16 value", "size count", "stream stream"]}
    with pytest.raises(RegistryError, match="cuFillAsync_v2"):
        wire.extend(lock, now(MESSAGES, other, ASK), 11)
