"""The table of CUDA's documentation (tests/documented) by NVIDIA's driver, natively and on a share. `make test-gpu`.

Where a row fails natively, the driver does otherwise than its documentation: the row gets `otherwise` with "driver" and
what was seen, and the driver decides what the software GPU and a share have to do.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
from documented.verdicts import GROUPS, check, natively, on
from support.system import Appliance, appliance


def _has_driver() -> bool:
    try:
        return int(ctypes.CDLL("libcuda.so.1").cuInit(0)) == 0
    except OSError:
        return False


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not _has_driver(), reason="no NVIDIA driver: libcuda.so.1 is not found, or finds no GPU"),
]


@pytest.fixture(scope="module")
def gpu() -> Iterator[Appliance]:
    with appliance(backend="cuda") as it:
        yield it


@pytest.mark.parametrize("group", GROUPS)
def test_rows_hold_by_the_driver_itself(group: str) -> None:
    check(natively(group, {}), "driver")


@pytest.mark.parametrize("group", GROUPS)
def test_rows_hold_on_a_share_of_the_driver(gpu: Appliance, group: str) -> None:
    check(on(gpu, group, "0.1"), "driver", "share")
