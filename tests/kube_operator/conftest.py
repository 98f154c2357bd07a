"""One API server for this folder: an operator works on all namespaces, so it shares its server with no other tests."""

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
    """With nothing of ours in it."""
    kube = Kube(server.kubeconfig)
    kube.clean()
    yield kube
    kube.clean()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path
