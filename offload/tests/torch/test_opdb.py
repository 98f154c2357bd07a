"""torch's own table of operations on the remote device: results, gradients, gradcheck, and the published table.

The comparisons run in processes of their own (`offload_opdb`): a crash is a result like any other.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from offload_opdb import SWEEPS, UNEQUAL, UNWRITTEN, Found, sweep

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(600)]

ROOT: Final = Path(__file__).parents[3]
PUBLISHED: Final = json.loads((ROOT / "offload/tests/torch/opdb.json").read_text())
ROUNDED: Final = {
    "nn.functional.linear_cross_entropy chunked": "another order of additions in half precision",
    "nn.functional.linear_cross_entropy chunked_none": "another order of additions in half precision",
    "nn.functional.scaled_dot_product_attention": "decomposed here, fused on the CPU, which rounds elsewhere",
}


def checked(found: Found, known: dict[str, str], ratio: float) -> None:
    """No crash, nothing unequal but what is known, and the share of equal samples."""
    assert not found.crashed
    assert {name: why for name, why in found.unequal.items() if name not in known} == {}
    assert found.ratio >= ratio, f"{found.equal} of {found.compared}"


@pytest.mark.parametrize(
    ("mode", "operations", "ratio"), [("forward", 650, 0.97), ("backward", 500, 0.98), ("gradcheck", 500, 0.99)]
)
def test_all_operations_are_as_published(mode: str, operations: int, ratio: float) -> None:
    """Results and gradients against the CPU's, gradients against differences of results there; docs/offload-ops.md
    has the figures. Some samples compare what nobody has written, so that the counts are not the same each time.
    """
    found = sweep(mode, SWEEPS[mode], timeout=550)
    assert found.operations >= operations
    checked(found, UNEQUAL, ratio)
    published = PUBLISHED[mode]
    advice = "target/frameworks/bin/python tools/offload_ops.py --measure"
    assert found.operations == pytest.approx(published["operations"], rel=0.01), advice
    assert found.compared == pytest.approx(published["compared"], rel=0.01), advice
    assert found.ratio == pytest.approx(published["equal"] / published["compared"], abs=0.01), advice
    surely = {name for name, why in UNEQUAL.items() if why is not UNWRITTEN}
    assert surely & set(found.unequal) == surely & set(published["unequal"]), advice


@pytest.mark.parametrize("mode", ["forward", "backward"])
def test_some_operations_of_each_family(mode: str) -> None:
    """The first of each: by the kind of operation that torch's table says, and the module that has it."""
    found = sweep(mode, SWEEPS[mode], families=True, timeout=120)
    assert found.operations >= 15
    checked(found, UNEQUAL, 0.9)


@pytest.mark.parametrize("dtype", ["complex64", "int64", "bool", "bfloat16"])
def test_other_types(dtype: str) -> None:
    """A fifth of the operations for each."""
    found = sweep("forward", dtype, every=5, timeout=500)
    assert found.compared >= 150
    checked(found, UNEQUAL | ROUNDED, 0.95)


def test_the_published_table_is_current() -> None:
    """docs/offload-ops.md says what this torch and a CPU acceptor do; `python tools/offload_ops.py` writes it."""
    made = subprocess.run(
        [sys.executable, ROOT / "tools/offload_ops.py", "--print"],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert (ROOT / "docs/offload-ops.md").read_text() == made.stdout
