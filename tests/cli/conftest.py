"""Appliances with stand-in workers for the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.stand_in import StandIn, make_dist
from support.system import REMOTEGPU, REMOTEGPU_RUN


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dist(tmp_path_factory.mktemp("stand-in") / "dist")


@pytest.fixture(scope="module")
def appliance(dist: Path) -> Iterator[StandIn]:
    with StandIn(dist, "--gpus", "2") as it:
        yield it


@pytest.fixture(scope="module")
def second(dist: Path) -> Iterator[StandIn]:
    with StandIn(dist, "--gpus", "2") as it:
        yield it


@pytest.fixture(params=[[REMOTEGPU, "run", "--report-file", "/dev/null"], [REMOTEGPU_RUN]], ids=["python", "rust"])
def run(request: pytest.FixtureRequest) -> list[str]:
    """A run that Python watches, with a share that `remotegpu-run` holds for it; and `remotegpu-run` itself."""
    words: list[str] = request.param
    return words
