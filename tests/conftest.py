"""Fixtures of more than one folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster.control_plane import VERSIONS
from support.apiserver import ApiServer, api_server, missing


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if {"apiserver", "each_apiserver"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("apiserver")


def _one(version: str) -> Iterator[ApiServer]:
    if reason := missing(version):
        pytest.skip(reason)
    with api_server(version) as server:
        yield server


@pytest.fixture(scope="session")
def apiserver() -> Iterator[ApiServer]:
    """One API server of 1.34 for the whole run; tests keep to namespaces of their own."""
    yield from _one("1.34")


@pytest.fixture(scope="session", params=VERSIONS)
def each_apiserver(request: pytest.FixtureRequest) -> Iterator[ApiServer]:
    """The same of 1.34 and of the newest minor: the test runs on both."""
    yield from _one(request.param)
