"""Fixtures for tests with the operator: an API server of their own, because an operator works on all namespaces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.apiserver import ApiServer, api_server
from support.kubelab import SYSTEM, Kube, serve_crds


@pytest.fixture(scope="package")
def server() -> Iterator[ApiServer]:
    with api_server() as running:
        serve_crds(running)
        Kube(running.kubeconfig).namespace(SYSTEM)
        yield running


@pytest.fixture
def kube(server: ApiServer) -> Iterator[Kube]:
    """A client of the API server, which has none of our objects at the start of the test."""
    kube = Kube(server.kubeconfig)
    kube.clean()
    yield kube
    kube.clean()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path
