from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.apiserver import ApiServer
from support.webhook import Admission, Space, issue, replica


@pytest.fixture(scope="session")
def admission(each_apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admission]:
    """The webhook, and the chart's admission objects that call it, in each of the two API servers in turn."""
    certificates = tmp_path_factory.mktemp("tls")
    authority = issue(certificates)
    with replica(certificates) as it:
        admission = Admission(each_apiserver, it, authority)
        admission.install()
        yield admission


@pytest.fixture
def space(admission: Admission) -> Space:
    return Space(admission.server)
