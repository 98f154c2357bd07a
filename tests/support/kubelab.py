"""Runs the operator against an API server without a cluster. `kubenodes` adds stand-ins for the other parts.

Tests check only the state of the API server.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import urllib3
from kubernetes import client as kubernetes_client
from kubernetes import config as kubernetes_config
from support.apiserver import ApiServer
from support.system import ROOT, free_port, until

Object = dict[str, Any]
T = TypeVar("T")

CLAIMS = "/apis/remotegpu.io/v1alpha1/namespaces/{}/gpuclaims"
POOLS = "/apis/remotegpu.io/v1alpha1/gpupools"
SYSTEM = "remotegpu-system"
SESSION = "status.remotegpu.io/session"
GATE = "remotegpu.io/claim"
TOKEN = "the operator's token"
MIB = 1 << 20
PAGE = 500


class RefusedError(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class Kube:
    """Sends requests to the API server as the administrator. Thread-safe."""

    def __init__(self, kubeconfig: Path, connections: int = 40) -> None:
        self.kubeconfig = str(kubeconfig)
        configuration = kubernetes_client.Configuration()
        kubernetes_config.load_kube_config(str(kubeconfig), client_configuration=configuration)
        self._url = configuration.host
        self._pool = urllib3.PoolManager(
            maxsize=connections,
            ca_certs=configuration.ssl_ca_cert,
            cert_file=configuration.cert_file,
            key_file=configuration.key_file,
            timeout=urllib3.Timeout(20),
            retries=False,
        )

    def __call__(self, method: str, path: str, body: Object | None = None, kind: str = "application/json") -> Object:
        answer = self._pool.request(
            method,
            self._url + path,
            body=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": kind},
        )
        if answer.status >= 400:
            raise RefusedError(answer.status, answer.data.decode())
        result: Object = json.loads(answer.data)
        return result

    def text(self, path: str) -> str:
        return self._pool.request("GET", self._url + path).data.decode()

    def get(self, path: str) -> Object:
        return self("GET", path)

    def find(self, path: str) -> Object | None:
        try:
            return self("GET", path)
        except RefusedError as error:
            if error.status == 404:
                return None
            raise

    def items(self, path: str) -> list[Object]:
        """Returns all objects at one point in time, in pages, since one call for thousands would time out."""
        found: list[Object] = []
        more = ""
        while True:
            page = self("GET", f"{path}?limit={PAGE}{more}")
            found += page["items"]
            token = page["metadata"].get("continue")
            if not token:
                return found
            more = f"&continue={token}"

    def merge(self, path: str, body: Object) -> Object:
        return self("PATCH", path, body, "application/merge-patch+json")

    def clean(self) -> None:
        """Deletes the objects that tests of an operator leave, since there is no garbage collector."""
        for path in (
            "/apis/remotegpu.io/v1alpha1/gpuclaims",
            "/apis/remotegpu.io/v1alpha1/gpupools",
            "/api/v1/pods",
            "/api/v1/events",
            "/api/v1/nodes",
            "/api/v1/resourcequotas",
            *(f"/api/v1/namespaces/{SYSTEM}/{plural}" for plural in ("secrets", "services", "configmaps")),
            f"/apis/apps/v1/namespaces/{SYSTEM}/statefulsets",
            f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases",
        ):
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(functools.partial(self._delete, path), self.items(path)))

    def _delete(self, path: str, thing: Object) -> None:
        """Deletes an object of the list at `path`, which may be a list of all namespaces."""
        root, plural = path.rsplit("/", 1)
        metadata = thing["metadata"]
        if "/namespaces/" not in path and "namespace" in metadata:
            root = f"{root}/namespaces/{metadata['namespace']}"
        with contextlib.suppress(RefusedError):
            self("DELETE", f"{root}/{plural}/{metadata['name']}", {"gracePeriodSeconds": 0})

    def namespace(self, name: str) -> None:
        with contextlib.suppress(RefusedError):
            self("POST", "/api/v1/namespaces", {"metadata": {"name": name}})


def serve_crds(server: ApiServer) -> None:
    """Installs our CRDs, and waits until the API server serves them."""
    server.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
    kube = Kube(server.kubeconfig)
    until(lambda: kube.find(POOLS) is not None and kube.find(CLAIMS.format("default")) is not None, 30, "our kinds")


def node(name: str, labels: dict[str, str] | None = None) -> Object:
    return {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}}}


def pool(name: str, **spec: Any) -> Object:
    return {
        "apiVersion": "remotegpu.io/v1alpha1",
        "kind": "GPUPool",
        "metadata": {"name": name},
        "spec": {"backend": "software", **spec},
    }


def claim(name: str, pool: str, **spec: Any) -> Object:
    return {
        "apiVersion": "remotegpu.io/v1alpha1",
        "kind": "GPUClaim",
        "metadata": {"name": name},
        "spec": {"pool": pool, **spec},
    }


def gated_pod(name: str, pool: str, milli: int = 0, **annotations: str) -> Object:
    """Returns a pod as the webhook writes it, with the scheduling gate."""
    resource = {"remotegpu/milli": str(milli)} if milli else {"remotegpu/client": "1"}
    container = {"name": "main", "image": "none", "resources": {"limits": resource, "requests": resource}}
    notes = {f"remotegpu.io/{key}": value for key, value in annotations.items()}
    if "claim" not in annotations:
        notes["remotegpu.io/pool"] = pool
    return {
        "metadata": {"name": name, "labels": {"status.remotegpu.io/pod": "true"}, "annotations": notes},
        "spec": {"containers": [container], "schedulingGates": [{"name": GATE}], "restartPolicy": "Never"},
    }


class Operator:
    """One replica of the operator, in its own process."""

    def __init__(self, kubeconfig: Path, folder: Path, identity: str, **environment: str) -> None:
        self.port = free_port()
        token = folder / "token"
        token.write_text(TOKEN)
        self._log = folder / f"{identity}.log"
        self.environment = {
            "PATH": os.environ["PATH"],
            "KUBECONFIG": str(kubeconfig),
            "POD_NAMESPACE": SYSTEM,
            "POD_NAME": identity,
            "APPLIANCE_IMAGE": "localhost/remotegpu-appliance:dev",
            "REMOTEGPU_TOKEN_FILE": str(token),
            "REMOTEGPU_HTTP_PORT": str(self.port),
            **environment,
        }
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "remotegpu_operator"], env=self.environment, stdout=log, stderr=log
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def restart(self) -> None:
        self.process = self._start()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            return self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def answers(self, path: str) -> bool:
        try:
            return urllib3.request("GET", f"http://127.0.0.1:{self.port}{path}", retries=False).status == 200
        except urllib3.exceptions.HTTPError:
            return False

    def metric(self, name: str) -> float:
        """Returns the sum of a metric over all labels."""
        text = urllib3.request("GET", f"http://127.0.0.1:{self.port}/metrics").data.decode()
        rows = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return sum(float(value) for key, value in rows if key.split("{")[0] == name)

    def leads(self) -> bool:
        """Whether the replica is the leader. False also before it answers."""
        return self.answers("/metrics") and self.metric("remotegpu_operator_leader") == 1

    def writes(self) -> float:
        """Returns the number of calls to the API server other than GET and WATCH."""
        text = urllib3.request("GET", f"http://127.0.0.1:{self.port}/metrics").data.decode()
        rows = (line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("remotegpu_api_calls_total{"))
        return sum(float(value) for key, value in rows if 'verb="GET"' not in key and 'verb="WATCH"' not in key)

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> int:
        """Returns the resident memory in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) * 1024


@contextlib.contextmanager
def operator(kubeconfig: Path, folder: Path, identity: str = "operator-0", **environment: str) -> Iterator[Operator]:
    """Runs an operator. Fails if its log contains a traceback."""
    running = Operator(kubeconfig, folder, identity, **environment)
    try:
        yield running
        assert "Traceback" not in running.log, running.log
    finally:
        if running.process.poll() is None:
            running.stop()


def in_parallel(work: Callable[[T], object], things: Iterable[T], writers: int = 16) -> None:
    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(work, things))


def pool_status(kube: Kube, name: str = "default") -> Object:
    found: Object = kube.get(f"{POOLS}/{name}").get("status") or {}
    return found


def ready(kube: Kube, appliances: int) -> None:
    until(lambda: pool_status(kube).get("ready") == f"{appliances}/{appliances}", 60, "all appliances are ready")


def all_free(kube: Kube) -> bool:
    """Whether no capacity of the pool is allocated."""
    status = pool_status(kube)
    return bool(status.get("free") == status["total"])


def shares(kube: Kube) -> dict[str, int]:
    """Returns the allocated bytes of each GPU, summed over all claims."""
    found: dict[str, int] = {}
    for each in kube.items("/apis/remotegpu.io/v1alpha1/gpuclaims"):
        for allocation in each.get("status", {}).get("allocations", []):
            found[allocation["gpu"]] = found.get(allocation["gpu"], 0) + allocation["memory"]
    return found
