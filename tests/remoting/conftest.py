"""Appliances for the remote tests: one per profile, shared by a module's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.system import Appliance, appliance


@pytest.fixture(scope="module", params=["normal", "hostile"])
def remote(request: pytest.FixtureRequest) -> Iterator[Appliance]:
    """Half of the runs meet the hostile profile: what a real driver may do and the software GPU normally does not."""
    # Without a grace: who is killed gives its share back at once, for the next test.
    with appliance("--grace", "0s", profile=request.param) as it:
        yield it


@pytest.fixture
def own_remote() -> Iterator[Appliance]:
    """An appliance of the test's own, to be hurt."""
    with appliance("--grace", "0s") as it:
        yield it
