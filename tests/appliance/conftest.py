"""Appliances with stand-in workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.stand_in import StandIn, Tenant, make_dist

from remotegpu.api.quantities import Ask


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dist(tmp_path_factory.mktemp("stand-in") / "dist")


@pytest.fixture(scope="module")
def appliance(dist: Path) -> Iterator[StandIn]:
    """Two GPUs of 1 GiB; each test leaves it without leases."""
    with StandIn(dist, "--gpus", "2") as it:
        yield it


@pytest.fixture
def tenant(appliance: StandIn) -> Iterator[Tenant]:
    """A lease of a quarter of a GPU."""
    lease = appliance.lease(Ask(milli_per_gpu=250))
    yield lease
    lease.close()
