"""Tests of a failed GPU, from NVML's event to the claim's status.

They run the operator's process, a real API server, and real appliances with software GPUs and a fake NVML.
"""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.apiserver import ApiServer
from support.claims import Cluster
from support.kubelab import CLAIMS, POOLS, SYSTEM, Kube, Object, Operator, gated_pod, node, operator, pool
from support.nvml_stand_in import NvmlStandIn
from support.system import REMOTEGPU, Watch, until

from remotegpu.api.kubernetes import pool_audience, server_name
from remotegpu.rpc import WIRE_VERSION, pb
from remotegpu.rpc.client import Access, ApplianceClient, parse_endpoint

TEAM = "/api/v1/namespaces/team"
MINE = CLAIMS.format("team")
# Values of NVML_GPU_RECOVERY_ACTION.
NONE, GPU_RESET = 0, 1


class RealAppliance:
    """A real appliance for a node, in place of the pod of its StatefulSet."""

    def __init__(self, kube: Kube, cluster: Cluster, folder: Path, node_name: str, address: str, *options: str) -> None:
        sets = f"/apis/apps/v1/namespaces/{SYSTEM}/statefulsets"

        def made() -> Object | None:
            found = (each for each in kube.items(sets) if node_name in str(each["spec"]["template"]["spec"]))
            return next(found, None)

        stateful_set = until(made, 20, f"the StatefulSet of {node_name}")
        self.name, self.address = stateful_set["metadata"]["name"], address
        data = kube.get(f"/api/v1/namespaces/{SYSTEM}/secrets/{self.name}-tls")["data"]
        files = {key: folder / f"{node_name}-{key}" for key in ("tls.crt", "tls.key")}
        for key, file in files.items():
            file.write_bytes(base64.b64decode(data[key]))
        authority = kube.get(f"/api/v1/namespaces/{SYSTEM}/secrets/remotegpu-ca")["data"]["ca.crt"]
        self.ca = folder / "ca.crt"
        self.ca.write_bytes(base64.b64decode(authority))
        self._command = [REMOTEGPU, "appliance", "--listen", f"{address}:7070", "--kubernetes", "--name", self.name]
        self._command += ["--pool", "default"]
        self._command += ["--cert", str(files["tls.crt"]), "--key", str(files["tls.key"]), "--drain-seconds", "0"]
        self._command += ["--uid-base", "0", *options]
        self._environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
        self._log = folder / f"{node_name}.log"
        path = f"/api/v1/namespaces/{SYSTEM}/pods"
        template = stateful_set["spec"]["template"]
        labels = template["metadata"]["labels"]
        kube("POST", path, {"metadata": {"name": f"{self.name}-0", "labels": labels}, "spec": template["spec"]})
        kube.merge(f"{path}/{self.name}-0/status", {"status": {"phase": "Running", "podIP": address}})

    @contextlib.contextmanager
    def running(self, **environment: str) -> Iterator[RealAppliance]:
        with self._log.open("ab") as log:
            process = subprocess.Popen(self._command, env=self._environment | environment, stderr=log)
        try:
            yield self
        finally:
            process.terminate()
            process.wait(20)
            assert "Traceback" not in self._log.read_text()

    def client(self, token: str) -> ApplianceClient:
        access = Access(token, self.ca, server_name(self.name))
        return ApplianceClient(parse_endpoint(f"{self.address}:7070"), access, call_seconds=10)


def make_pod(kube: Kube, name: str, milli: int) -> Object:
    pod = gated_pod(name, "default", milli)
    pod["spec"]["serviceAccountName"] = "default"
    return kube("POST", f"{TEAM}/pods", pod)


def claim_of(kube: Kube, pod: Object) -> Object:
    return kube.find(f"{MINE}/{pod['metadata']['name']}-{pod['metadata']['uid']}") or {"status": {}}


def state(kube: Kube, pod: Object) -> tuple[str, str, str]:
    """Returns the phase and reason of the pod's claim, and the claim's appliance."""
    found = claim_of(kube, pod).get("status", {})
    allocations = found.get("allocations") or [{"appliance": ""}]
    return found.get("phase", ""), found.get("reason", ""), allocations[0]["appliance"]


def reasons(kube: Kube, name: str) -> set[str]:
    return {each["reason"] for each in kube.items(f"{TEAM}/events") if each["involvedObject"]["name"] == name}


class Program:
    """A program of a pod: it opens sessions on the appliance with the pod's token."""

    def __init__(self, server: ApiServer, appliance: RealAppliance, pod: Object, claim: Object) -> None:
        metadata = pod["metadata"]
        token = server.token("team", "default", pool_audience("default"), (metadata["name"], metadata["uid"]))
        self.client = appliance.client(token)
        self._metadata = (("authorization", f"Bearer {token}"),)
        self._lease_id = claim["metadata"]["uid"].replace("-", "")

    def open(self) -> pb.OpenSessionReply:
        table = self.client.hello().versions.table_hash
        versions = pb.Versions(wire=WIRE_VERSION, table_hash=table, program="test")
        request = pb.OpenSessionRequest(versions=versions, lease_id=self._lease_id, pid=1, process_name="train")
        reply: pb.OpenSessionReply = self.client._stub.OpenSession(request, metadata=self._metadata, timeout=10)
        return reply

    def connect(self, reply: pb.OpenSessionReply) -> socket.socket:
        connection = self.client.connect_data(reply.data_port, tls=True)
        connection.sendall(b"RGP1" + bytes.fromhex(reply.session_id) + bytes.fromhex(reply.ticket))
        connection.settimeout(20)
        assert connection.recv(1) == b"K"
        return connection


def everything(connection: socket.socket) -> bytes:
    """Reads all data until the connection ends."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(65536):
            found += piece
    return found


@pytest.fixture
def cluster(server: ApiServer, kube: Kube) -> Cluster:
    kube.namespace("team")
    with contextlib.suppress(Exception):
        kube("POST", f"{TEAM}/serviceaccounts", {"metadata": {"name": "default"}})
    return Cluster(server)


@pytest.fixture
def running(server: ApiServer, cluster: Cluster, folder: Path) -> Iterator[Operator]:
    del cluster
    # Without a token file the operator requests a token for each appliance.
    with operator(server.kubeconfig, folder, REMOTEGPU_TOKEN_FILE="") as process:
        yield process


def broken_gpu(kube: Kube) -> Object | None:
    gpu: Object = kube.get(f"{POOLS}/default")["status"]["appliances"][0]["gpus"][0]
    return None if gpu["healthy"] else gpu


def test_a_gpu_that_falls_off_the_bus(
    server: ApiServer, kube: Kube, cluster: Cluster, running: Operator, folder: Path
) -> None:
    nvml = NvmlStandIn(folder / "nvml")
    kube("POST", "/api/v1/nodes", node("node-a", {"gpus": "yes"}))
    kube("POST", POOLS, pool("default", nodeSelector={"gpus": "yes"}))
    failing = RealAppliance(kube, cluster, folder, "node-a", "127.0.13.1", *nvml.options)
    with failing.running(**nvml.environment), contextlib.ExitStack() as stack:
        train, late = make_pod(kube, "train", 250), make_pod(kube, "late", 250)
        placed = ("Allocated", "Allocated", failing.name)
        until(lambda: state(kube, train) == state(kube, late) == placed, 30, "both have a share")
        # The pod `train` runs, and `late` has not started yet.
        until(lambda: "schedulingGates" not in kube.get(f"{TEAM}/pods/train")["spec"], 20, "the pod is let go")
        kube.merge(f"{TEAM}/pods/train/status", {"status": {"phase": "Running"}})
        program = Program(server, failing, train, claim_of(kube, train))
        reply = until(lambda: (found := program.open()).session_id and found, 10, "a session")
        connection = stack.enter_context(program.connect(reply))
        gpu = kube.get(f"{POOLS}/default")["status"]["appliances"][0]["gpus"][0]
        assert gpu["healthy"]

        nvml.set(recovery=GPU_RESET)
        nvml.raise_xid(79)
        raised = Watch()
        assert b"XID 79" in everything(connection), "the session is told, and ends"
        until(lambda: state(kube, train) == ("Allocated", "GPUUnhealthy", failing.name), 10, "the claim says so")
        assert raised.within(10)
        conditions = {each["type"]: each for each in claim_of(kube, train)["status"]["conditions"]}
        assert (conditions["Ready"]["status"], conditions["Ready"]["reason"]) == ("False", "GPUUnhealthy")
        assert "XID 79" in claim_of(kube, train)["status"]["message"]
        until(lambda: "GPUUnhealthy" in reasons(kube, "train"), 10, "the pod's Event")
        until(lambda: "GPUUnhealthy" in reasons(kube, claim_of(kube, train)["metadata"]["name"]), 10, "the claim's")
        gpu = until(lambda: broken_gpu(kube), 10, "the pool's status, which is written once a second, says so")
        assert "XID 79" in gpu["message"]
        assert "XID 79" in program.open().refusal
        until(lambda: state(kube, late)[0] == "Pending", 10, "who has not started waits for another GPU")

        # The claim whose pod has not started moves to another node. The claim of the running pod stays.
        kube("POST", "/api/v1/nodes", node("node-b", {"gpus": "yes"}))
        well = RealAppliance(kube, cluster, folder, "node-b", "127.0.13.2", "--memory", "8GiB")
        stack.enter_context(well.running())
        until(lambda: state(kube, late) == ("Allocated", "Allocated", well.name), 30, "it has another GPU")
        assert state(kube, train) == ("Allocated", "GPUUnhealthy", failing.name)

        nvml.set(recovery=NONE)
        until(lambda: state(kube, train) == ("Allocated", "Allocated", failing.name), 60, "the GPU is back")
        assert program.open().session_id
