"""Runs an operator that is not the leader and serves the dashboard, with the permissions of the chart."""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3
from support.apiserver import ApiServer
from support.chart import render
from support.kubelab import CLAIMS, MIB, POOLS, SYSTEM, Kube, Object, claim, operator, pool
from support.system import free_port, until

from remotegpu.api import usage
from remotegpu.api.usage import Holding

RBAC = {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount"}
GPU = "GPU-0123456789abcdef"


@dataclass(frozen=True)
class Page:
    url: str
    server: ApiServer
    kube: Kube

    def get(self, path: str, token: str = "", method: str = "GET", **headers: str) -> urllib3.BaseHTTPResponse:
        sent = ({"Authorization": f"Bearer {token}"} if token else {}) | headers
        return urllib3.request(method, self.url + path, headers=sent, retries=False, timeout=20)

    def snapshot(self, token: str) -> Object:
        response = self.get("/api/snapshot", token)
        assert response.status == 200, response.data
        found: Object = response.json()
        return found

    def account(self, name: str, namespace: str, *rules: Object, everywhere: bool = False) -> str:
        """Returns a token of a new service account with these permissions in its namespace, or in all namespaces."""
        self.server.kubeconfig_of(namespace, name)
        scope: Object = {} if everywhere else {"namespace": namespace}
        kind = "ClusterRole" if everywhere else "Role"
        subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
        group = "rbac.authorization.k8s.io"
        self.server.apply(
            {"apiVersion": f"{group}/v1", "kind": kind, "metadata": {"name": name, **scope}, "rules": list(rules)},
            {
                "apiVersion": f"{group}/v1",
                "kind": f"{kind}Binding",
                "metadata": {"name": name, **scope},
                "roleRef": {"apiGroup": group, "kind": kind, "name": name},
                "subjects": [subject],
            },
        )
        return self.server.token(namespace, name)

    def claim(self, namespace: str, name: str, **share: Any) -> None:
        self.kube("POST", CLAIMS.format(namespace), claim(name, "default", **(share or {"fraction": "0.25"})))

    def record(self, *holdings: Holding, until: int) -> None:
        """Writes a usage record in the operator's format."""
        lines = "\n".join(each.line() for each in holdings)
        for name, kind, data in (
            (usage.journal_name(1), usage.JOURNAL, {"000000": lines}),
            ("remotegpu-usage", usage.HEAD, {"until": str(until)}),
        ):
            body = {"metadata": {"name": name, "labels": {usage.USAGE_LABEL: kind}}, "data": data}
            self.kube("POST", f"/api/v1/namespaces/{SYSTEM}/configmaps", body)

    def status(self, namespace: str, name: str, **status: Any) -> None:
        self.kube.merge(f"{CLAIMS.format(namespace)}/{name}/status", {"status": status})

    def has_share(self, namespace: str, name: str, memory: int = 256 * MIB) -> None:
        share = {"appliance": "a", "node": "node-a", "gpu": GPU, "model": "Test", "memory": memory, "milli": 250}
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "Allocated",
            "message": "it has its share",
            "lastTransitionTime": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        status = {"reason": "Allocated", "message": "it has its share", "gpus": "1 x Test", "conditions": [ready]}
        self.status(namespace, name, phase="Allocated", allocations=[share], **status)


def may(verb: str, *resources: str, group: str = "remotegpu.io") -> Object:
    return {"apiGroups": [group], "resources": list(resources), "verbs": [verb]}


def pool_with_a_gpu(kube: Kube) -> None:
    # One second of a whole GPU costs 1.
    kube("POST", POOLS, pool("default", prices=[{"model": "Test", "gpuHour": "3600"}]))
    gpu = {"uuid": GPU, "model": "Test", "memory": 1024 * MIB, "shareable": 1024 * MIB, "healthy": True}
    gpu |= {"allocatedMemory": 512 * MIB, "allocatedMilli": 500}
    appliance = {"name": "a", "node": "node-a", "phase": "Ready", "gpus": [gpu]}
    amounts = {"total": {"milli": 1000, "memory": "1Gi"}, "free": {"milli": 500, "memory": "512Mi"}}
    status = {"phase": "Ready", "reason": "Ready", "appliances": [appliance], **amounts}
    kube.merge(f"{POOLS}/default/status", {"status": status})


@contextlib.contextmanager
def serving(server: ApiServer, kube: Kube, folder: Path) -> Iterator[Page]:
    """Serves the dashboard. Another holder has the Lease, so that the operator does not change the test's objects."""
    kube.clean()
    rendered = [each for each in render({"dashboard": {"enabled": True}}, folder) if each["kind"] in RBAC]
    kubeconfig = server.kubeconfig_of(SYSTEM, "remotegpu-operator")
    server.apply(*(each for each in rendered if "helm.sh/hook" not in (each["metadata"].get("annotations") or {})))
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    held = {"holderIdentity": "another", "leaseDurationSeconds": 3600, "acquireTime": now, "renewTime": now}
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases"
    kube("POST", leases, {"metadata": {"name": "remotegpu-operator"}, "spec": held})
    port = free_port()
    with operator(kubeconfig, folder, "operator-1", REMOTEGPU_DASHBOARD_PORT=str(port)) as running:
        page = Page(f"http://127.0.0.1:{port}", server, kube)

        def answers() -> bool:
            assert running.process.poll() is None, running.log
            with contextlib.suppress(urllib3.exceptions.HTTPError):
                return page.get("/api/snapshot", "nobody's").status == 401
            return False

        until(answers, 30, "the dashboard answers")
        yield page
    kube.clean()


def sent(pieces: Iterable[bytes]) -> Iterator[Object]:
    """Yields the messages of a stream of server-sent events."""
    rest = ""
    for piece in pieces:
        rest += piece.decode()
        *events, rest = rest.split("\n\n")
        yield from (json.loads(each.removeprefix("data: ")) for each in events if each.startswith("data: "))
