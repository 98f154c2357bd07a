from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.apiserver import ApiServer
from support.webhook import Space, install, issue, replica


@pytest.fixture(scope="session")
def admitting(each_apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Both API servers, one after the other, with the chart's admission objects and the webhook."""
    certificates = tmp_path_factory.mktemp("tls")
    authority = issue(certificates)
    with replica(certificates) as it:
        install(each_apiserver, it.url, authority)
        yield each_apiserver


@pytest.fixture
def space(admitting: ApiServer) -> Space:
    return Space(admitting)
