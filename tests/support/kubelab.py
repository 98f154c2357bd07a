"""An operator of ours against an API server alone, and stand-ins for what a cluster would add: the StatefulSet
controller with its pods, and appliances that tell which GPUs they have.

The stand-ins know nothing of claims: what a test believes comes from the API server.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import urllib3
from kubernetes import client as kubernetes_client
from kubernetes import config as kubernetes_config
from support.apiserver import ApiServer
from support.system import ROOT, free_port, until

from remotegpu.rpc import WIRE_VERSION, pb, pb_grpc

Object = dict[str, Any]

CLAIMS = "/apis/remotegpu.io/v1alpha1/namespaces/{}/gpuclaims"
POOLS = "/apis/remotegpu.io/v1alpha1/gpupools"
SYSTEM = "remotegpu-system"
SESSION = "status.remotegpu.io/session"
GATE = "remotegpu.io/claim"
MIB = 1 << 20
PAGE = 500


class RefusedError(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class Kube:
    """Plain requests as the administrator; thread-safe."""

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
        """All of one moment, page by page: thousands at once take the API server longer than a call may last."""
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
        """Delete what tests of an operator leave: there is no garbage collector."""
        for path in (
            "/apis/remotegpu.io/v1alpha1/gpuclaims",
            "/apis/remotegpu.io/v1alpha1/gpupools",
            "/api/v1/pods",
            "/api/v1/events",
            "/api/v1/nodes",
            "/api/v1/resourcequotas",
            *(f"/api/v1/namespaces/{SYSTEM}/{plural}" for plural in ("secrets", "services")),
            f"/apis/apps/v1/namespaces/{SYSTEM}/statefulsets",
            f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases",
        ):
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(functools.partial(self._delete, path), self.items(path)))

    def _delete(self, path: str, thing: Object) -> None:
        """An object of those at `path`, which may be of all namespaces."""
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
    """Our kinds are known, and the API server answers for them."""
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
    """As the webhook leaves it."""
    resource = {"remotegpu/milli": str(milli)} if milli else {"remotegpu/client": "1"}
    container = {"name": "main", "image": "none", "resources": {"limits": resource, "requests": resource}}
    notes = {f"remotegpu.io/{key}": value for key, value in annotations.items()}
    if "claim" not in annotations:
        notes["remotegpu.io/pool"] = pool
    return {
        "metadata": {"name": name, "labels": {"status.remotegpu.io/pod": "true"}, "annotations": notes},
        "spec": {"containers": [container], "schedulingGates": [{"name": GATE}], "restartPolicy": "Never"},
    }


class Appliance(pb_grpc.ControlServicer):
    """Lists its GPUs over TLS, to clients with the operator's token."""

    def __init__(self, name: str, address: str, gpus: int, memory: int, token: str) -> None:
        self.name = name
        self.address = address
        self.draining = False
        self.calls = 0
        self._token = token
        self._gpus = [
            pb.Gpu(
                index=index,
                uuid=f"GPU-{hashlib.sha256(f'{name} {index}'.encode()).hexdigest()[:32]}",
                name="Software GPU",
                total_bytes=memory,
                shareable_bytes=memory,
                healthy=True,
            )
            for index in range(gpus)
        ]
        self._server: grpc.Server | None = None
        self.certificate = b""

    def start(self, certificate: bytes, key: bytes) -> None:
        self.certificate = certificate
        server = grpc.server(ThreadPoolExecutor(2))
        pb_grpc.add_ControlServicer_to_server(self, server)
        server.add_secure_port(f"{self.address}:7070", grpc.ssl_server_credentials([(key, certificate)]))
        server.start()
        self._server = server

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None

    def Inventory(self, request: pb.InventoryRequest, context: grpc.ServicerContext) -> pb.InventoryReply:  # noqa: N802
        if ("authorization", f"Bearer {self._token}") not in context.invocation_metadata():
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is not the operator's")
        self.calls += 1
        versions = pb.Versions(wire=WIRE_VERSION, program="stand-in")
        return pb.InventoryReply(gpus=self._gpus, versions=versions, backend="software", draining=self.draining)


class Nodes:
    """The StatefulSet controller and the kubelets: for every StatefulSet of the operator a pod with an address of its
    own on loopback, and in it an appliance. A deleted pod is made anew, at another address."""

    def __init__(self, kube: Kube, token: str, subnet: int) -> None:
        self._kube = kube
        self._token = token
        self._subnet = subnet
        self._next = 1
        self.appliances: dict[str, Appliance] = {}
        self._pods: dict[str, str] = {}
        self._held: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.failure: Exception | None = None

    def __enter__(self) -> Nodes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for appliance in self.appliances.values():
            appliance.stop()

    def hold_back(self, name: str, held: bool = True) -> None:
        """Whether a pod of this StatefulSet is not made anew for now."""
        (self._held.add if held else self._held.discard)(name)

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            try:
                self._pass()
            except (RefusedError, urllib3.exceptions.HTTPError):
                continue  # the API server is away, or somebody was faster
            except Exception as error:
                self.failure = error
                raise

    def _pass(self) -> None:
        sets = self._kube.items(f"/apis/apps/v1/namespaces/{SYSTEM}/statefulsets")
        pods = {each["metadata"]["name"]: each for each in self._kube.items(f"/api/v1/namespaces/{SYSTEM}/pods")}
        for name in [
            name for name, uid in self._pods.items() if pods.get(name, {}).get("metadata", {}).get("uid") != uid
        ]:
            del self._pods[name]
            self.appliances.pop(name).stop()
        for each in sets:
            metadata = each["metadata"]
            revision = hashlib.sha256(json.dumps(each["spec"]["template"], sort_keys=True).encode()).hexdigest()[:10]
            status = {"observedGeneration": metadata["generation"], "updateRevision": revision, "replicas": 1}
            if (each.get("status") or {}).get("observedGeneration") != metadata["generation"]:
                path = f"/apis/apps/v1/namespaces/{SYSTEM}/statefulsets/{metadata['name']}/status"
                self._kube.merge(path, {"status": status})
            if f"{metadata['name']}-0" not in pods and metadata["name"] not in self._held:
                self._start(each, revision)
        names = {each["metadata"]["name"] for each in sets}
        for name, pod in pods.items():
            if name in self._pods and pod["metadata"]["labels"]["remotegpu.io/appliance"] not in names:
                self._kube("DELETE", f"/api/v1/namespaces/{SYSTEM}/pods/{name}", {"gracePeriodSeconds": 0})

    def _start(self, stateful_set: Object, revision: str) -> None:
        name = stateful_set["metadata"]["name"]
        template = stateful_set["spec"]["template"]
        path = f"/api/v1/namespaces/{SYSTEM}/pods"
        body = {
            "metadata": {
                "name": f"{name}-0",
                "labels": template["metadata"]["labels"] | {"controller-revision-hash": revision},
            },
            "spec": template["spec"],
        }
        pod = self._kube("POST", path, body)
        address = f"127.0.{self._subnet}.{self._next}"
        self._next += 1
        secret = self._kube.get(f"/api/v1/namespaces/{SYSTEM}/secrets/{name}-tls")
        arguments = template["spec"]["containers"][0]["args"]
        gpus = int(arguments[arguments.index("--gpus") + 1])
        memory = int(arguments[arguments.index("--memory") + 1])
        appliance = Appliance(name, address, gpus, memory, self._token)
        appliance.start(*(base64.b64decode(secret["data"][key]) for key in ("tls.crt", "tls.key")))
        self.appliances[f"{name}-0"] = appliance
        self._pods[f"{name}-0"] = pod["metadata"]["uid"]
        self._kube.merge(f"{path}/{name}-0/status", {"status": {"phase": "Running", "podIP": address}})


class Operator:
    """One replica, a process of its own."""

    def __init__(self, kubeconfig: Path, folder: Path, identity: str, **environment: str) -> None:
        self.port = free_port()
        token = folder / "token"
        token.write_text("the operator's token")
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
        """The sum over all labels."""
        text = urllib3.request("GET", f"http://127.0.0.1:{self.port}/metrics").data.decode()
        rows = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return sum(float(value) for key, value in rows if key.split("{")[0] == name)

    def writes(self) -> float:
        """Calls to the API server that were meant to change something."""
        text = urllib3.request("GET", f"http://127.0.0.1:{self.port}/metrics").data.decode()
        rows = (line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("remotegpu_api_calls_total{"))
        return sum(float(value) for key, value in rows if 'verb="GET"' not in key and 'verb="WATCH"' not in key)

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> int:
        """Resident bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) * 1024


@contextlib.contextmanager
def operator(kubeconfig: Path, folder: Path, identity: str = "operator-0", **environment: str) -> Iterator[Operator]:
    running = Operator(kubeconfig, folder, identity, **environment)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.stop()


def shares(kube: Kube) -> dict[str, int]:
    """Bytes given away on each GPU, summed over all claims of the cluster."""
    found: dict[str, int] = {}
    for each in kube.items("/apis/remotegpu.io/v1alpha1/gpuclaims"):
        for allocation in each.get("status", {}).get("allocations", []):
            found[allocation["gpu"]] = found.get(allocation["gpu"], 0) + allocation["memory"]
    return found


def wait(condition: Any, what: str, seconds: float = 30) -> None:
    until(condition, seconds, what)


def now() -> float:
    return time.monotonic()
