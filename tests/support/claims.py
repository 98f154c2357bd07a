"""Claims on the real API server and an appliance that serves them: the operator's part is played by the test."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from support.apiserver import ApiServer
from support.stand_in import Session, StandIn, Tenant
from support.system import ROOT, free_port, until

from remotegpu.api.claims import Allocation, ClaimSpec, ClaimStatus, Phase, PodReference, Reason, lease_id_of
from remotegpu.api.kubernetes import API_VERSION, AUDIENCE
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
    """What the chart and the operator make, as far as an appliance sees it."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        server.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
        server.kubectl("wait", "--for=condition=Established", "crd/gpuclaims.remotegpu.io", "--timeout=30s")
        self.kubeconfig = server.kubeconfig_of(SYSTEM, "remotegpu-appliance")
        server.kubeconfig_of(SYSTEM, OPERATOR)
        self.operator_token = server.token(SYSTEM, OPERATOR, AUDIENCE)
        self._allow()

    def namespace(self) -> str:
        name = f"team-{next(_UNIQUE)}"
        for kind, named, where in (("Namespace", name, {}), ("ServiceAccount", "default", {"namespace": name})):
            self.server.apply({"apiVersion": "v1", "kind": kind, "metadata": {"name": named, **where}})
        return name

    def pod(self, namespace: str) -> Pod:
        name = f"pod-{next(_UNIQUE)}"
        spec = {"serviceAccountName": "default", "containers": [{"name": "main", "image": "none"}]}
        self.server.apply(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}
        )
        uid = self._get("pod", namespace, name)["metadata"]["uid"]
        return Pod(namespace, name, uid, self.server.token(namespace, "default", AUDIENCE, (name, uid)))

    def claim(self, namespace: str, *allocations: Allocation, consumers: Sequence[Pod] = ()) -> Claim:
        """A claim that the operator has allocated."""
        name = f"claim-{next(_UNIQUE)}"
        self.server.apply(
            {
                "apiVersion": API_VERSION,
                "kind": "GPUClaim",
                "metadata": {"name": name, "namespace": namespace},
                "spec": ClaimSpec(fraction="0.25").to_object(),
            }
        )
        claim = Claim(namespace, name, self._get("gpuclaim", namespace, name)["metadata"]["uid"])
        self.allocate(claim, *allocations, consumers=consumers)
        return claim

    def allocate(
        self, claim: Claim, *allocations: Allocation, consumers: Sequence[Pod] = (), phase: Phase = Phase.ALLOCATED
    ) -> None:
        status = ClaimStatus(
            phase=phase,
            reason=Reason.ALLOCATED,
            message="allocated by a test",
            allocations=allocations,
            consumers=tuple(pod.reference for pod in consumers),
        )
        patch = json.dumps({"status": status.to_object()})
        self.server.kubectl(
            "patch", "gpuclaim", claim.name, "-n", claim.namespace, "--subresource=status", "--type=merge", "-p", patch
        )

    def delete(self, kind: str, it: Claim | Pod) -> None:
        self.server.kubectl("delete", kind, it.name, "-n", it.namespace, "--now")

    def _get(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            self.server.kubectl("get", kind, name, "-n", namespace, "-o", "json").stdout
        )
        return found

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


class ClaimAppliance(StandIn):
    """An appliance with stand-in workers that serves claims; its own client is the operator."""

    def __init__(
        self, dist: Path, cluster: Cluster, *options: str, name: str = "appliance-a", kubeconfig: Path | None = None
    ) -> None:
        self.name = name
        self.http = f"http://127.0.0.1:{free_port()}"
        super().__init__(
            dist,
            *("--kubernetes", "--name", name, "--http", self.http.removeprefix("http://"), *options),
            env={"KUBECONFIG": str(kubeconfig or cluster.kubeconfig)},
            access=Access(token=cluster.operator_token),
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
        """A part of one of its GPUs."""
        return Allocation(self.name, "node", self.gpus[gpu].uuid, "Stand-in GPU", memory, milli=250)

    def served(self, claim: Claim) -> pb.Lease | None:
        leases = self.client.inventory().leases
        return next((lease for lease in leases if lease.claim_uid == claim.uid), None)

    def tenant(self, claim: Claim | str, pod: Pod | str) -> PodTenant:
        lease_id = claim if isinstance(claim, str) else claim.lease_id
        return PodTenant(self, lease_id, pod if isinstance(pod, str) else pod.token)


class PodTenant(Tenant):
    """A process of a pod: no secret, but the pod's token in each call."""

    def __init__(self, appliance: StandIn, lease_id: str, token: str) -> None:
        super().__init__(appliance, pb.Granted(lease_id=lease_id), hold=False)
        self._stub = appliance.client._stub
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()

    def call(self, method: str, **fields: Any) -> Any:
        """One call of the control service, by its name."""
        request = getattr(pb, f"{method}Request")
        versions = {"versions": pb.Versions(wire=WIRE_VERSION, table_hash=7, program="test")}
        known = {**(versions if "versions" in request.DESCRIPTOR.fields_by_name else {}), **fields}
        reply = getattr(self._stub, method)(request(**known), metadata=self._metadata, timeout=10)
        return list(reply) if method == "OpenLease" else reply

    def hello(self) -> pb.HelloReply:
        reply: pb.HelloReply = self.call("Hello", lease_id=self.granted.lease_id)
        return reply

    def open_session(self, pid: int = 1, table_hash: int = 7) -> pb.OpenSessionReply:
        reply: pb.OpenSessionReply = self.call(
            "OpenSession", lease_id=self.granted.lease_id, pid=pid, process_name=f"process {pid}"
        )
        return reply

    def close_session(self, session: Session) -> None:
        self.call("CloseSession", session_id=session.reply.session_id)


def refusal(call: Any, *arguments: Any, **fields: Any) -> tuple[str, str]:
    """Status and sentence of a call that must be refused."""
    try:
        call(*arguments, **fields)
    except grpc.RpcError as error:
        return error.code().name, error.details() or ""
    raise AssertionError("it was not refused")
