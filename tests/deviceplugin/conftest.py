"""A node and a pool for tests of the plugin's process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.apiserver import ApiServer
from support.plugin_node import Node, set_pool
from support.system import ROOT


@pytest.fixture
def node() -> Iterator[Node]:
    # A socket's path has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="rg-", dir="/tmp") as folder:
        result = Node(Path(folder))
        result.kubelet.start()
        yield result
        result.kubelet.stop()


@pytest.fixture(scope="module")
def pools(apiserver: ApiServer) -> ApiServer:
    apiserver.kubectl("apply", "--server-side", "-f", str(ROOT / "crds" / "gpupools.yaml"))
    apiserver.kubectl("wait", "--for=condition=Established", "crd/gpupools.remotegpu.io", "--timeout=30s")
    return apiserver


@pytest.fixture
def pool(pools: ApiServer) -> Iterator[ApiServer]:
    """One pool of three GPUs."""
    set_pool(pools, "plugin", 3000)
    yield pools
    pools.kubectl("delete", "gpupool", "--all")
