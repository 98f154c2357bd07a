"""The examples in docstrings hold."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("remoting/remotegpu", "operator/remotegpu_operator", "deviceplugin", "offload/remotegpu_offload")
FILES = sorted(
    str(path.relative_to(ROOT))
    for folder in PRODUCT
    for path in (ROOT / folder).rglob("*.py")
    if "\n    >>> " in (text := path.read_text()) or "\n>>> " in text
)
# Types that everyone who reads the code meets.
EXPLAINED = {
    "remoting/remotegpu/api/quantities.py",
    "operator/remotegpu_operator/allocation/allocator.py",
    "offload/remotegpu_offload/objects/codec.py",
    "offload/remotegpu_offload/wire/peer.py",
}


def test_types_that_everyone_meets_have_an_example() -> None:
    assert set(FILES) >= EXPLAINED


@pytest.mark.parametrize("file", FILES)
def test_examples_hold(file: str) -> None:
    package = file.split("/", 1)[1].removesuffix(".py").replace("/", ".")
    module = importlib.import_module(package)
    outcome = doctest.testmod(module)
    assert outcome.attempted and not outcome.failed
