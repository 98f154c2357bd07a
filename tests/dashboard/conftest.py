"""One API server and one dashboard for this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.apiserver import ApiServer, api_server
from support.dashboard import Page, may, pool_with_a_gpu, serving
from support.kubelab import SYSTEM, Kube, serve_crds


@pytest.fixture(scope="package")
def server() -> Iterator[ApiServer]:
    with api_server() as running:
        serve_crds(running)
        yield running


@pytest.fixture(scope="package")
def page(server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with serving(server, Kube(server.kubeconfig), tmp_path_factory.mktemp("dashboard")) as running:
        for namespace in ("team-a", "team-b"):
            running.kube.namespace(namespace)
        pool_with_a_gpu(running.kube)
        running.claim("team-a", "train")
        running.has_share("team-a", "train")
        running.claim("team-b", "secret-project")
        running.has_share("team-b", "secret-project")
        yield running


@pytest.fixture(scope="package")
def everything(page: Page) -> str:
    """The token of one who may list it all."""
    events = may("list", "events", group="")
    return page.account("reader", SYSTEM, may("list", "gpupools", "gpuclaims"), events, everywhere=True)


@pytest.fixture(scope="package")
def of_team_a(page: Page) -> str:
    return page.account("member", "team-a", may("list", "gpuclaims"))
