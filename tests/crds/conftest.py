from __future__ import annotations

import pytest
from support.apiserver import ApiServer
from support.crds import Served


@pytest.fixture(scope="session")
def served(each_apiserver: ApiServer) -> Served:
    """The schemas on both API servers, one after the other."""
    return Served(each_apiserver)
