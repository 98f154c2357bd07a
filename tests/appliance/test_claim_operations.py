"""The life of an appliance in Kubernetes: its start, its certificate, its end, and a time without the API server."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.certificates import kubeconfig
from support.apiserver import ApiServer
from support.claims import ClaimAppliance, Cluster, Tls, refusal
from support.faultproxy import FaultProxy
from support.system import MIB, REMOTEGPU, free_port, until

from remotegpu.api.failures import ApplianceError, Failure
from remotegpu.rpc.client import Access, ApplianceClient, parse_endpoint

SHARE = 256 * MIB


@pytest.fixture(scope="module")
def cluster(apiserver: ApiServer) -> Cluster:
    return Cluster(apiserver)


class Line:
    """The way to the API server, which can be cut."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._target = int(cluster.server.url.rpartition(":")[2])
        self._port = free_port()
        self.kubeconfig = folder / "kubeconfig"
        url = f"https://127.0.0.1:{self._port}"
        self.kubeconfig.write_text(kubeconfig(url, cluster.server.ca, cluster.appliance_token))
        self._proxy: FaultProxy | None = None

    def mend(self) -> None:
        self._proxy = FaultProxy("127.0.0.1", self._target, listen_port=self._port).__enter__()

    def cut(self) -> None:
        if self._proxy is not None:
            self._proxy.__exit__(None, None, None)
            self._proxy = None


@pytest.fixture
def line(cluster: Cluster, tmp_path: Path) -> Iterator[Line]:
    it = Line(cluster, tmp_path)
    yield it
    it.cut()


def test_without_the_api_server_what_is_known_stays_true(dist: Path, cluster: Cluster, line: Line) -> None:
    namespace = cluster.namespace()
    pod, late = cluster.pod(namespace), cluster.pod(namespace)
    with ClaimAppliance(dist, cluster, kubeconfig=line.kubeconfig) as appliance:
        assert appliance.get("/healthz")[0] == 200
        status, why = appliance.get("/readyz")
        assert (status, "claims" in why) == (503, True), "it does not know who may use it"

        line.mend()
        until(appliance.ready, 10, "the claims are known")
        claim = cluster.claim(namespace, appliance.place(SHARE), consumers=[pod, late])
        tenant = appliance.tenant(claim, pod)
        session = tenant.session()

        line.cut()
        until(lambda: "does not answer" in appliance.log, 10, "the loss is seen")
        assert appliance.ready()
        assert session.grant(MIB) == MIB
        tenant.session(2).close()
        assert appliance.served(claim), "the operator's token was seen before"
        assert refusal(appliance.tenant(claim, late).hello)[0] == "UNAVAILABLE"
        cluster.delete_claim(claim)

        line.mend()
        assert "the lease has ended" in session.rest(), "what happened meanwhile is seen"
        until(lambda: appliance.leased == 0, 10, "its memory is free")


def test_a_new_certificate_is_used_at_once_on_both_ports(dist: Path, cluster: Cluster, tmp_path: Path) -> None:
    tls = Tls(tmp_path, "appliance")
    with ClaimAppliance(dist, cluster, tls=tls) as appliance:
        until(appliance.ready, 10, "the claims are known")
        host, _, control = appliance.endpoint.rpartition(":")
        ports = (int(control), appliance.client.hello().data_port)

        def shown(port: int) -> str:
            context = ssl.create_default_context(cafile=str(tls.ca))
            with (
                socket.create_connection((host, port), 5) as plain,
                context.wrap_socket(plain, server_hostname=tls.server_name) as secured,
            ):
                return str(secured.getpeercert())

        before = [shown(port) for port in ports]
        assert before[0] == before[1]
        tls.renew()
        after = [shown(port) for port in ports]
        assert after[0] == after[1] != before[0]
        # Nothing that can be used: the old one stays.
        (tls.directory / "tls.crt").write_text("no certificate")
        assert [shown(port) for port in ports] == after
        assert appliance.client.hello()


def test_a_recreated_appliance_has_the_same_gpus(dist: Path, cluster: Cluster) -> None:
    def uuids(name: str) -> list[str]:
        with ClaimAppliance(dist, cluster, "--gpus", "2", name=name) as appliance:
            assert appliance.client.inventory().appliance == name
            return [gpu.uuid for gpu in appliance.gpus]

    first = uuids("appliance-x")
    assert uuids("appliance-x") == first
    assert not set(first) & set(uuids("appliance-y"))


def test_it_drains_until_no_session_is_left(dist: Path, cluster: Cluster) -> None:
    namespace = cluster.namespace()
    pod = cluster.pod(namespace)
    with ClaimAppliance(dist, cluster, "--drain-seconds", "60") as appliance:
        claim = cluster.claim(namespace, appliance.place(SHARE), consumers=[pod])
        tenant = appliance.tenant(claim, pod)
        session = tenant.session()
        operator = appliance.tenant("", cluster.operator_token(appliance.name))
        assert operator.call("Drain", deadline_seconds=1).sessions == 1
        assert appliance.client.inventory().draining

        appliance.process.send_signal(signal.SIGTERM)
        until(lambda: "draining" in appliance.log, 5, "it drains")
        assert session.grant(MIB) == MIB
        tenant.session(2).close()
        session.close()
        assert appliance.process.wait(10) == 0, "a claim without sessions keeps nobody waiting"


def test_a_missing_cluster_is_reported(tmp_path: Path) -> None:
    done = subprocess.run(
        [REMOTEGPU, "appliance", "--kubernetes", "--name", "a", "--listen", f"127.0.0.1:{free_port()}"],
        env={**os.environ, "KUBECONFIG": str(tmp_path / "missing")},
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode == 69
    assert "--kubernetes" in done.stderr and "KUBECONFIG" in done.stderr


def test_the_operator_gets_the_reason_of_a_refusal(dist: Path, cluster: Cluster) -> None:
    with ClaimAppliance(dist, cluster, "--operator-account", "elsewhere:operator") as appliance:
        stranger = ApplianceClient(parse_endpoint(appliance.endpoint), Access(cluster.operator_token(appliance.name)))
        with pytest.raises(ApplianceError) as refused:
            stranger.inventory()
        assert refused.value.failure is Failure.DENIED
        assert "elsewhere:operator" in str(refused.value), "whose account it is to be"
        stranger.close()
