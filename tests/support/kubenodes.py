"""Stand-ins for parts of a cluster besides the API server: the StatefulSet controller with its pods, and appliances.

The appliances report their GPUs. They do not serve claims.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import urllib3
from support.kubelab import SYSTEM, TOKEN, Kube, Object, RefusedError

from remotegpu.rpc import WIRE_VERSION, pb, pb_grpc


class Appliance(pb_grpc.ControlServicer):
    """An appliance that lists its GPUs over TLS, to clients with the operator's token."""

    def __init__(self, name: str, address: str, gpus: int, memory: int, token: str) -> None:
        self.name = name
        self.address = address
        self.draining = False
        self.full = ""
        # Why it refuses claims, by the ids of their leases.
        self.unserved: dict[str, str] = {}
        self.claims_unknown = False
        self.calls = 0
        # The leases to report; a test sets them.
        self.leases: list[pb.Lease] = []
        # Called for MoveLease; a test sets it. Returns the reason why the lease does not move, or "" if it has moved.
        self.on_move: Callable[[pb.MoveLeaseRequest], str] = lambda _: "no test says that it moves"
        self.invited: list[str] = []
        self._token = token
        self.gpus = [
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

    def _check(self, context: grpc.ServicerContext) -> None:
        if ("authorization", f"Bearer {self._token}") not in context.invocation_metadata():
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is not the operator's")

    def InviteLease(  # noqa: N802
        self, request: pb.InviteLeaseRequest, context: grpc.ServicerContext
    ) -> pb.InviteLeaseReply:
        self._check(context)
        self.invited.append(request.lease_id)
        return pb.InviteLeaseReply(invitation=f"by {self.name}")

    def MoveLease(  # noqa: N802
        self, request: pb.MoveLeaseRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.Progress]:
        self._check(context)
        if why := self.on_move(request):
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)
        yield pb.Progress(done=pb.Done())

    def Inventory(self, request: pb.InventoryRequest, context: grpc.ServicerContext) -> pb.InventoryReply:  # noqa: N802
        self._check(context)
        self.calls += 1
        versions = pb.Versions(wire=WIRE_VERSION, program="stand-in")
        return pb.InventoryReply(
            gpus=self.gpus, leases=self.leases, versions=versions, backend="software", draining=self.draining,
            opens_no_session=self.full, driver_version=13000,
            unserved=[pb.Unserved(lease_id=each, why=why) for each, why in self.unserved.items()],
            claims_unknown=self.claims_unknown,
        )  # fmt: skip


class Nodes:
    """The StatefulSet controller and kubelets: creates a pod and an appliance for each StatefulSet of the operator.

    Each appliance has its own loopback address. A deleted pod is recreated with another address.
    """

    def __init__(self, kube: Kube, subnet: int) -> None:
        self._kube = kube
        self._subnet = subnet
        self._next = 1
        self.appliances: dict[str, Appliance] = {}
        self._pods: dict[str, str] = {}
        self._held: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failure: Exception | None = None

    def __enter__(self) -> Nodes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for appliance in self.appliances.values():
            appliance.stop()
        assert self._failure is None, self._failure

    def hold_back(self, name: str, held: bool = True) -> None:
        """Stops to recreate the pod of this StatefulSet; `held=False` allows it again."""
        (self._held.add if held else self._held.discard)(name)

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            try:
                self._pass()
            except (RefusedError, urllib3.exceptions.HTTPError):
                continue  # the API server does not answer, or another client was faster
            except Exception as error:
                self._failure = error
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
        appliance = Appliance(name, address, gpus, memory, TOKEN)
        appliance.start(*(base64.b64decode(secret["data"][key]) for key in ("tls.crt", "tls.key")))
        self.appliances[f"{name}-0"] = appliance
        self._pods[f"{name}-0"] = pod["metadata"]["uid"]
        self._kube.merge(f"{path}/{name}-0/status", {"status": {"phase": "Running", "podIP": address}})
