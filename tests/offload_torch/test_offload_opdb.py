"""torch's own table of operations on the remote device: results, gradients, gradcheck, and the published table.

The comparisons run in processes of their own (`support.offload_opdb`): a crash is a result like any other.
"""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from support.offload_opdb import Found, sweep

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(900)]

ROOT: Final = Path(__file__).parents[2]
UNWRITTEN: Final = "compares memory that nobody has written to"
SPARSE: Final = "sparse tensors: the remote device has dense ones only"
UNEQUAL: Final = {
    "empty": UNWRITTEN,
    "empty_like": UNWRITTEN,
    "empty_permuted": UNWRITTEN,
    "empty_strided": UNWRITTEN,
    "new_empty": UNWRITTEN,
    "new_empty_strided": UNWRITTEN,
    "sparse.mm reduce": SPARSE,
    "sparse.sampled_addmm": SPARSE,
    "to_sparse": SPARSE,
    "tensor_split": "the sections must be a tensor on the CPU, also with CUDA",
}
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


def test_results_equal_the_cpus() -> None:
    found = sweep("forward", "float32", timeout=600)
    assert found.operations >= 650
    assert found.compared >= 1800
    checked(found, UNEQUAL, 0.97)


def test_gradients_equal_the_cpus() -> None:
    found = sweep("backward", "float64", timeout=600)
    assert found.operations >= 500
    checked(found, UNEQUAL, 0.98)


@pytest.mark.parametrize("dtype", ["complex64", "int64", "bool", "bfloat16"])
def test_other_types(dtype: str) -> None:
    """A fifth of the operations for each."""
    found = sweep("forward", dtype, every=5, timeout=600)
    assert found.compared >= 150
    checked(found, UNEQUAL | ROUNDED, 0.95)


def test_gradcheck() -> None:
    """A twelfth of the operations, against differences of their own results there."""
    found = sweep("gradcheck", "float64", every=12, timeout=600)
    assert found.compared >= 60
    checked(found, {}, 1.0)


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
