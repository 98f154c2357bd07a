"""Certificates and command lines of etcd, API server, controller manager and scheduler.

The whole cluster starts all four; the tests of API semantics start the first two on loopback ports of their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from cluster.addresses import IPV4, Network, joined
from cluster.certificates import Authority, kubeconfig, service_account_keys

PROGRAMS = Path(__file__).parents[2] / "target" / "cluster" / "bin"
VERSIONS = {"1.34": "kube-apiserver", "newest": "kube-apiserver-newest"}


@dataclass(frozen=True)
class ControlPlane:
    folder: Path
    address: str = "127.0.0.1"
    port: int = 6443
    etcd_port: int = 2379
    # The other programs' own HTTPS ports, for probes only.
    controller_manager_port: int = 10257
    scheduler_port: int = 10259
    networks: tuple[Network, ...] = (IPV4,)

    @property
    def url(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"https://{host}:{self.port}"

    @property
    def services(self) -> str:
        return joined([network.services for network in self.networks])

    @property
    def pods(self) -> str:
        return joined([network.pods for network in self.networks])

    @property
    def admin(self) -> Path:
        return self.folder / "admin.kubeconfig"

    @property
    def certificates(self) -> Path:
        return self.folder / "certificates"

    def make_certificates(self, nodes: Mapping[str, Sequence[str]] = MappingProxyType({})) -> None:
        """Makes all certificates at once, for these nodes' names and addresses too: the authority's key is not kept."""
        self.certificates.mkdir(parents=True)
        authority = Authority("kubernetes")
        (self.certificates / "ca.crt").write_bytes(authority.certificate)
        service_account_keys(self.certificates)
        names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
        addresses = {self.address, "127.0.0.1", *(network.api for network in self.networks)}
        authority.issue("kube-apiserver", subjects=(*names, *addresses)).write(self.certificates, "apiserver")
        authority.issue("kube-apiserver-kubelet-client", "system:masters").write(self.certificates, "kubelet-client")
        for node, own in nodes.items():
            authority.issue(node, subjects=(node, *own)).write(self.certificates, node)
        users = {
            "admin": ("admin", "system:masters"),
            "controller-manager": ("system:kube-controller-manager", ""),
            "scheduler": ("system:kube-scheduler", ""),
            **{f"kubelet-{node}": (f"system:node:{node}", "system:nodes") for node in nodes},
            **{f"proxy-{node}": ("system:kube-proxy", "") for node in nodes},
        }
        for file, (name, group) in users.items():
            content = kubeconfig(self.url, authority.certificate, authority.issue(name, group))
            target = self.folder / f"{file}.kubeconfig"
            target.touch(mode=0o600)
            target.write_text(content)

    def etcd(self) -> list[str]:
        client = f"http://127.0.0.1:{self.etcd_port}"
        peer = f"http://127.0.0.1:{self.etcd_port + 1}"
        return [
            *("etcd", "--name=e2e", f"--data-dir={self.folder / 'etcd'}", "--log-level=warn"),
            *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
            *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=e2e={peer}"),
            # Data written here need not outlive a loss of power.
            "--unsafe-no-fsync",
            *("--quota-backend-bytes=4294967296", "--auto-compaction-retention=5m"),
        ]

    def apiserver(self, version: str = "1.34", *more: str) -> list[str]:
        files = self.certificates
        return [
            *(str(PROGRAMS / VERSIONS[version]), f"--etcd-servers=http://127.0.0.1:{self.etcd_port}"),
            *(f"--bind-address={self.address}", f"--advertise-address={self.address}", f"--secure-port={self.port}"),
            *(f"--service-cluster-ip-range={self.services}", "--allow-privileged=true"),
            *("--authorization-mode=Node,RBAC", "--anonymous-auth=false", f"--client-ca-file={files / 'ca.crt'}"),
            *(f"--tls-cert-file={files / 'apiserver.crt'}", f"--tls-private-key-file={files / 'apiserver.key'}"),
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={files / 'service-account.key'}",
            f"--service-account-key-file={files / 'service-account.pub'}",
            f"--kubelet-certificate-authority={files / 'ca.crt'}",
            f"--kubelet-client-certificate={files / 'kubelet-client.crt'}",
            f"--kubelet-client-key={files / 'kubelet-client.key'}",
            # A node's name resolves nowhere but on that node.
            "--kubelet-preferred-address-types=InternalIP",
            # The default of 400 and 200 is for a machine that serves nothing else; the load tests have 32 writers.
            *("--max-requests-inflight=800", "--max-mutating-requests-inflight=400"),
            *("--enable-admission-plugins=NodeRestriction", "--event-ttl=1h"),
            *more,
        ]

    def controller_manager(self) -> list[str]:
        files = self.certificates
        return [
            str(PROGRAMS / "kube-controller-manager"),
            *self._client("controller-manager", self.controller_manager_port),
            *("--use-service-account-credentials=true", f"--root-ca-file={files / 'ca.crt'}"),
            f"--service-account-private-key-file={files / 'service-account.key'}",
            *("--allocate-node-cidrs=false", f"--cluster-cidr={self.pods}"),
            f"--service-cluster-ip-range={self.services}",
            # With the clients' own limits of 20 and 50 requests a second, a load test would measure those limits.
            *("--kube-api-qps=200", "--kube-api-burst=400"),
        ]

    def scheduler(self) -> list[str]:
        configuration = self.folder / "scheduler.json"
        content = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(self.folder / "scheduler.kubeconfig"), "qps": 200, "burst": 400},
            "leaderElection": {"leaderElect": False},
        }
        configuration.write_text(json.dumps(content))
        return [
            *(str(PROGRAMS / "kube-scheduler"), f"--config={configuration}"),
            *("--bind-address=127.0.0.1", f"--secure-port={self.scheduler_port}"),
        ]

    def _client(self, user: str, port: int) -> list[str]:
        file = self.folder / f"{user}.kubeconfig"
        return [
            *(f"--kubeconfig={file}", f"--authentication-kubeconfig={file}", f"--authorization-kubeconfig={file}"),
            *("--leader-elect=false", "--bind-address=127.0.0.1", f"--secure-port={port}"),
        ]
