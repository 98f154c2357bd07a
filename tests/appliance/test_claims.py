"""An appliance in Kubernetes: claims and tokens on the real API server decide who gets what."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster.control_plane import VERSIONS
from support.apiserver import ApiServer
from support.claims import OPERATOR, SYSTEM, Claim, ClaimAppliance, Cluster, Pod, refusal
from support.faultproxy import FaultProxy
from support.system import MIB, until

from remotegpu.api.claims import Phase
from remotegpu.rpc.client import ApplianceError

SHARE = 256 * MIB
# What is promised: a refusal within a second, the end of a deleted claim's sessions within ten.
REFUSED_SECONDS = 1.0
REVOKED_SECONDS = 10.0


@pytest.fixture(scope="module")
def cluster(apiserver: ApiServer) -> Cluster:
    return Cluster(apiserver)


@pytest.fixture(scope="module")
def appliance(dist: Path, cluster: Cluster) -> Iterator[ClaimAppliance]:
    with ClaimAppliance(dist, cluster, "--gpus", "2") as it:
        until(it.ready, 10, "the claims are known")
        yield it


@pytest.fixture
def namespace(cluster: Cluster, appliance: ClaimAppliance) -> Iterator[str]:
    """Its claims are gone from the appliance afterwards."""
    name = cluster.namespace()
    yield name
    cluster.server.kubectl("delete", "gpuclaims", "--all", "-n", name)
    until(lambda: appliance.leased == 0, REVOKED_SECONDS, "all memory is free again")


@pytest.fixture
def pod(cluster: Cluster, namespace: str) -> Pod:
    return cluster.pod(namespace)


@pytest.fixture
def claim(cluster: Cluster, appliance: ClaimAppliance, namespace: str, pod: Pod) -> Claim:
    made = cluster.claim(namespace, appliance.place(SHARE), consumers=[pod])
    until(lambda: appliance.served(made), 5, "the appliance has seen the claim")
    return made


def test_a_pod_gets_exactly_what_its_claim_says(appliance: ClaimAppliance, claim: Claim, pod: Pod) -> None:
    tenant = appliance.tenant(claim, pod)
    (device,) = tenant.hello().devices
    assert (device.memory_bytes, device.gpu_uuid) == (SHARE, appliance.gpus[0].uuid)
    session = tenant.session()
    assert session.grant(SHARE) == SHARE
    assert session.grant(1) == 0
    lease = appliance.served(claim)
    assert lease is not None
    assert (lease.claim, lease.sessions) == (f"{claim.namespace}/{claim.name}", 1)
    (place,) = lease.places
    assert (place.gpu, place.leased_bytes, place.used_bytes) == (appliance.gpus[0].uuid, SHARE, SHARE)
    assert [gpu.leased_bytes for gpu in appliance.gpus] == [SHARE, 0]
    metric = f'remotegpu_claim_used_bytes{{claim="{claim.name}",gpu="{place.gpu}",namespace="{claim.namespace}"'
    assert metric in appliance.get("/metrics")[1]
    tenant.close_session(session)
    assert appliance.gpus[0].used_bytes == 0
