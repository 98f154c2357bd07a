"""Claims on a real API server, and an appliance that serves them. The test acts as the operator."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
from cluster.certificates import Authority
from kubernetes import client, config
from support.apiserver import ApiServer
from support.stand_in import Session, StandIn, Tenant
from support.system import ROOT, free_port

from remotegpu.api.claims import Allocation, ClaimSpec, ClaimStatus, Move, Phase, PodReference, Reason, lease_id_of
from remotegpu.api.kubernetes import (
    API_VERSION,
    AUDIENCE,
    CLAIMS,
    GROUP,
    SESSION_FILE,
    TOKEN_FILE,
    VERSION,
    appliance_audience,
    server_name,
)
from remotegpu.api.quantities import Ask
from remotegpu.rpc import WIRE_VERSION, pb
from remotegpu.rpc.client import Access

SYSTEM = "remotegpu-system"
OPERATOR = "remotegpu-operator"
_UNIQUE = iter(range(1 << 30))


@dataclass(frozen=True)
class Pod:
    namespace: str
    name: str
    uid: str
    token: str

    @property
    def reference(self) -> PodReference:
        return PodReference(self.name, self.uid)


@dataclass(frozen=True)
class Claim:
    namespace: str
    name: str
    uid: str

    @property
    def lease_id(self) -> str:
        return lease_id_of(self.uid)


class Cluster:
    """Objects of the chart and of the operator that an appliance uses.

    Uses the Python client, because kubectl for each object would take most of a test's time.
    """

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        server.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
        server.kubectl("wait", "--for=condition=Established", "crd/gpuclaims.remotegpu.io", "--timeout=30s")
        self.kubeconfig = server.kubeconfig_of(SYSTEM, "remotegpu-appliance")
        server.kubeconfig_of(SYSTEM, OPERATOR)
        api = config.new_client_from_config(str(server.kubeconfig))
        self._core = client.CoreV1Api(api)
        self._objects = client.CustomObjectsApi(api)
        self.appliance_token = self.token(SYSTEM, "remotegpu-appliance", audience=None)
        self._allow()

    def operator_token(self, appliance: str) -> str:
        """Returns the operator's token for this appliance."""
        return self.token(SYSTEM, OPERATOR, audience=appliance_audience(appliance))

    def namespace(self) -> str:
        name = f"team-{next(_UNIQUE)}"
        self._core.create_namespace({"metadata": {"name": name}})
        self._core.create_namespaced_service_account(name, {"metadata": {"name": "default"}})
        return name

    def token(
        self, namespace: str, account: str = "default", pod: Pod | None = None, audience: str | None = AUDIENCE
    ) -> str:
        spec: dict[str, Any] = {"audiences": [audience] if audience else None, "expirationSeconds": 3600}
        if pod is not None:
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}
        made = self._core.create_namespaced_service_account_token(account, namespace, {"spec": spec})
        return str(made.status.token)

    def pod(self, namespace: str) -> Pod:
        name = f"pod-{next(_UNIQUE)}"
        spec = {"serviceAccountName": "default", "containers": [{"name": "main", "image": "none"}]}
        made = self._core.create_namespaced_pod(namespace, {"metadata": {"name": name}, "spec": spec})
        pod = Pod(namespace, name, made.metadata.uid, "")
        return replace(pod, token=self.token(namespace, pod=pod))

    def claim(self, namespace: str, *allocations: Allocation, consumers: Sequence[Pod] = ()) -> Claim:
        """Creates a claim with these allocations, as if the operator had allocated it."""
        name, spec = f"claim-{next(_UNIQUE)}", ClaimSpec(ask=Ask(1, 250)).to_object()
        body = {"apiVersion": API_VERSION, "kind": "GPUClaim", "metadata": {"name": name}, "spec": spec}
        made = self._objects.create_namespaced_custom_object(GROUP, VERSION, namespace, CLAIMS, body)
        claim = Claim(namespace, name, made["metadata"]["uid"])
        self.allocate(claim, *allocations, consumers=consumers)
        return claim

    def allocate(
        self,
        claim: Claim,
        *allocations: Allocation,
        consumers: Sequence[Pod] = (),
        phase: Phase = Phase.ALLOCATED,
        move: Move | None = None,
    ) -> None:
        status = ClaimStatus(
            phase=phase,
            reason=Reason.ALLOCATED,
            message="allocated by a test",
            allocations=allocations,
            consumers=tuple(pod.reference for pod in consumers),
            move=move,
        )
        self._objects.patch_namespaced_custom_object_status(
            GROUP, VERSION, claim.namespace, CLAIMS, claim.name, {"status": status.to_object()}
        )

    def delete_claim(self, claim: Claim) -> None:
        self._objects.delete_namespaced_custom_object(GROUP, VERSION, claim.namespace, CLAIMS, claim.name)

    def delete_claims(self, namespace: str) -> None:
        self._objects.delete_collection_namespaced_custom_object(GROUP, VERSION, namespace, CLAIMS)

    def delete_pod(self, pod: Pod) -> None:
        self._core.delete_namespaced_pod(pod.name, pod.namespace, grace_period_seconds=0)

    def ask_to_end(self, pod: Pod) -> None:
        """Deletes a pod that has a node. The pod stays, since no kubelet ends it."""
        target = {"apiVersion": "v1", "kind": "Node", "name": "some-node"}
        binding = {"metadata": {"name": pod.name}, "target": target}
        self._core.create_namespaced_pod_binding(pod.name, pod.namespace, binding, _preload_content=False)
        self._core.delete_namespaced_pod(pod.name, pod.namespace, grace_period_seconds=600)

    def _allow(self) -> None:
        rules = [
            {"apiGroups": ["remotegpu.io"], "resources": ["gpuclaims"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
        ]
        rbac, named = "rbac.authorization.k8s.io", {"name": "remotegpu-appliance"}
        subject = {"kind": "ServiceAccount", "name": "remotegpu-appliance", "namespace": SYSTEM}
        self.server.apply(
            {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": named, "rules": rules},
            {
                "apiVersion": f"{rbac}/v1",
                "kind": "ClusterRoleBinding",
                "metadata": named,
                "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", **named},
                "subjects": [subject],
            },
        )


class Tls:
    """An appliance's certificate as in a mounted Secret: the folder is a link to the current files."""

    def __init__(self, folder: Path, appliance: str) -> None:
        self.server_name = server_name(appliance)
        self.authority = Authority("remotegpu")
        self.ca = folder / "ca.crt"
        self.ca.write_bytes(self.authority.certificate)
        self.directory = folder / "tls"
        self._folder = folder
        self.renew()

    def renew(self) -> None:
        """Replaces all files at once, as kubelet does."""
        data = self._folder / f"data-{next(_UNIQUE)}"
        data.mkdir()
        self.authority.issue("appliance", subjects=(self.server_name,)).write(data, "tls")
        fresh = self._folder / "fresh"
        fresh.symlink_to(data)
        fresh.rename(self.directory)

    @property
    def options(self) -> tuple[str, ...]:
        return ("--cert", str(self.directory / "tls.crt"), "--key", str(self.directory / "tls.key"))


class ClaimAppliance(StandIn):
    """An appliance that serves claims. Its `client` has the operator's token."""

    def __init__(
        self,
        dist: Path,
        cluster: Cluster,
        *options: str,
        name: str = "",
        kubeconfig: Path | None = None,
        tls: Tls | None = None,
    ) -> None:
        self.name = name or f"appliance-{next(_UNIQUE)}"
        self.tls = tls
        self.http = f"http://127.0.0.1:{free_port()}"
        secure = (tls.ca, tls.server_name) if tls else (None, None)
        super().__init__(
            dist,
            *("--kubernetes", "--name", self.name, "--http", self.http.removeprefix("http://")),
            *(*options, *(tls.options if tls else ())),
            env={"KUBECONFIG": str(kubeconfig or cluster.kubeconfig)},
            access=Access(cluster.operator_token(self.name), *secure),
        )

    def ready(self) -> bool:
        return self.get("/readyz")[0] == 200

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.http + path, timeout=5) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def audits(self, *words: str) -> list[str]:
        return [line for line in self.log.splitlines() if "audit: refused" in line and all(w in line for w in words)]

    def place(self, memory: int, gpu: int = 0) -> Allocation:
        """Returns an allocation of a share of one of its GPUs."""
        return Allocation(self.name, "node", self.gpus[gpu].uuid, "Stand-in GPU", memory, milli=250)

    def served(self, claim: Claim) -> pb.Lease | None:
        leases = self.client.inventory().leases
        return next((lease for lease in leases if lease.claim_uid == claim.uid), None)

    def pod_directory(self, folder: Path, claim: Claim, pod: Pod) -> Path:
        """Writes the files of a pod's volume to a folder: the session from the operator, and the token from kubelet."""
        assert self.tls is not None
        session = {
            "claim": {"namespace": claim.namespace, "name": claim.name, "uid": claim.uid},
            "ca": self.tls.ca.read_text(),
            "appliances": [{"endpoint": self.endpoint, "server_name": self.tls.server_name}],
        }
        folder.mkdir(exist_ok=True)
        (folder / SESSION_FILE).write_text(json.dumps(session))
        (folder / TOKEN_FILE).write_text(pod.token)
        return folder

    def tenant(self, claim: Claim | str, pod: Pod | str) -> PodTenant:
        lease_id = claim if isinstance(claim, str) else claim.lease_id
        return PodTenant(self, lease_id, pod if isinstance(pod, str) else pod.token)


class PodTenant(Tenant):
    """A process of a pod. It has no secret of a lease, but sends the pod's token in each call."""

    def __init__(self, appliance: StandIn, lease_id: str, token: str) -> None:
        super().__init__(appliance, pb.Granted(lease_id=lease_id), hold=False)
        self._stub = appliance.client._stub
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()

    def call(self, method: str, **fields: Any) -> Any:
        """Calls a method of the control service by its name. Returns the reply, or a list of streamed replies."""
        request = getattr(pb, f"{method}Request")
        versions = {"versions": pb.Versions(wire=WIRE_VERSION, table_hash=7, program="test")}
        known = {**(versions if "versions" in request.DESCRIPTOR.fields_by_name else {}), **fields}
        reply = getattr(self._stub, method)(request(**known), metadata=self._metadata, timeout=10)
        return list(reply) if hasattr(reply, "__next__") else reply

    def hello(self) -> pb.HelloReply:
        reply: pb.HelloReply = self.call("Hello", lease_id=self.granted.lease_id)
        return reply

    def open_session(self, pid: int = 1, table_hash: int = 7, process: str = "") -> pb.OpenSessionReply:
        name = f"process {pid}"
        reply: pb.OpenSessionReply = self.call(
            "OpenSession", lease_id=self.granted.lease_id, pid=pid, process_name=name, process=process
        )
        return reply

    def close_session(self, session: Session) -> None:
        self.call("CloseSession", session_id=session.reply.session_id)


def refusal(call: Any, *arguments: Any, **fields: Any) -> tuple[str, str]:
    """Returns status and message of a call. Fails if the call is not refused."""
    try:
        call(*arguments, **fields)
    except grpc.RpcError as error:
        return error.code().name, error.details() or ""
    raise AssertionError("it was not refused")
