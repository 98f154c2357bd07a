"""One API server and one dashboard for this folder."""

from __future__ import annotations

import base64
import datetime
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser
from support.apiserver import ApiServer, api_server
from support.browser import chromium
from support.dashboard import GPU, Page, may, pool_with_a_gpu, serving
from support.kubelab import MIB, POOLS, SYSTEM, TOKEN, Kube, serve_crds
from support.kubenodes import Appliance

from remotegpu.api.kubernetes import server_name
from remotegpu.api.usage import Holding, Share
from remotegpu_operator.appliances.certificates import new_authority, new_leaf

ADDRESS = "127.0.36.1"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


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
        now = int(time.time())
        running.record(*used(now), until=now)
        yield running


def used(now: int) -> list[Holding]:
    """`train` has had its share for half an hour and used it for ten minutes; two others have gone."""

    def holding(namespace: str, claim: str, milli: int, wait: int, start: int, **more: Any) -> Holding:
        shares = (Share("Test", milli, milli << 20),)
        start += now
        return Holding(claim, namespace, claim, "its-user", "default", shares, start, created=start - wait, **more)

    return [
        holding("team-a", "train", 250, 30, -1800, used=600, idle_since=now - 1200),
        holding("team-b", "secret-project", 500, 90, -1500, end=now - 300, used=900),
        holding("team-gone", "past", 1000, 5, -1200, end=now - 1100),
    ]


@pytest.fixture(scope="package")
def everything(page: Page) -> str:
    """The token of one who may list it all."""
    events = may("list", "events", group="")
    return page.account("reader", SYSTEM, may("list", "gpupools", "gpuclaims"), events, everywhere=True)


@pytest.fixture(scope="package")
def of_team_a(page: Page) -> str:
    return page.account("member", "team-a", may("list", "gpuclaims"))


@pytest.fixture
def appliance(page: Page) -> Iterator[Appliance]:
    """The pool's, which tells what a test has it tell."""
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    authority = new_authority(now)
    pair = new_leaf(authority, (server_name("a"),), now)
    data = {"bundle.crt": base64.b64encode(authority.certificate.encode()).decode()}
    secrets = f"/api/v1/namespaces/{SYSTEM}/secrets"
    page.kube("POST", secrets, {"metadata": {"name": "remotegpu-ca"}, "data": data})
    made = Appliance("a", ADDRESS, 1, 1024 * MIB, TOKEN)
    made.gpus[0].uuid = GPU
    made.start(pair.certificate.encode(), pair.key.encode())
    appliances = page.kube.get(f"{POOLS}/default")["status"]["appliances"]
    there = [each | {"address": f"{ADDRESS}:7070"} for each in appliances]
    page.kube.merge(f"{POOLS}/default/status", {"status": {"appliances": there}})
    yield made
    made.stop()
    page.kube.merge(f"{POOLS}/default/status", {"status": {"appliances": appliances}})
    page.kube("DELETE", f"{secrets}/remotegpu-ca")
