"""One appliance for all frameworks, and one run of each program each way."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import pytest
from frameworks.running import Outcomes, outcome
from support.system import Appliance, appliance

# The memory of a software GPU of `remotegpu run --native`.
MEMORY_MIB = 8192


@pytest.fixture(scope="session")
def share() -> Iterator[Appliance]:
    with appliance(memory_mib=MEMORY_MIB) as it:
        yield it


@pytest.fixture(scope="session")
def run(share: Appliance, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Outcomes]:
    """run(program): what came of it natively, and then remotely with the kernels that were compiled natively."""
    environment = {"CUPY_CACHE_DIR": str(tmp_path_factory.mktemp("cupy"))}

    @functools.cache
    def both(program: str) -> Outcomes:
        return Outcomes(
            outcome(program, "--native", environment=environment),
            outcome(program, "--appliance", share.endpoint, environment=environment),
        )

    return both
