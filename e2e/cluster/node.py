"""A node: network, mount and host-name namespaces with containerd, kubelet, kube-proxy and kube-netpol in them."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cluster import cgroups
from cluster.addresses import IPV4, Network, joined
from cluster.control_plane import PROGRAMS, ControlPlane
from cluster.parts import Part

# Folders that are fixed in the programs, so that only a private mount gives each node its own.
MOUNT_POINTS = (
    "/var/lib/kubelet",
    "/var/lib/containerd",
    "/var/lib/cni",
    "/var/lib/remotegpu",
    # Without these two each kubelet deletes the other's logs.
    "/var/log/pods",
    "/var/log/containers",
    "/etc/cni/net.d",
)
BRIDGE = "kube-e2e"


@dataclass(frozen=True)
class Node:
    name: str
    number: int
    state: Path
    networks: tuple[Network, ...] = (IPV4,)

    @property
    def addresses(self) -> list[str]:
        """One address of each family, the preferred one first."""
        return [network.node(self.number) for network in self.networks]

    @property
    def folder(self) -> Path:
        return self.state / self.name

    def part(self, program: str) -> Part:
        return Part(self.state, f"{program}-{self.name}")

    @property
    def parts(self) -> list[Part]:
        """The node's parts in the order in which they start."""
        return [self.part(program) for program in ("containerd", "kubelet", "kube-proxy", "kube-netpol")]

    def inside(self, *command: str) -> list[str]:
        """Returns an nsenter command that runs `command` on this node; its pid becomes that of the program."""
        # `ip netns exec` would remount /sys and hide the control groups.
        return ["nsenter", f"--target={self.part('holder').pid}", "--mount", "--uts", "--net", "--", *command]

    def run(self, *command: str) -> str:
        result = subprocess.run(self.inside(*command), capture_output=True, text=True)
        if result.returncode:
            raise RuntimeError(f"on {self.name}: {' '.join(command)}: {result.stderr.strip()}")
        return result.stdout

    def ctr(self, *arguments: str) -> str:
        return self.run("ctr", "--namespace=k8s.io", *arguments)

    def hold(self) -> None:
        """Makes the namespaces and the node's control groups."""
        self.folder.mkdir(parents=True)
        cgroups.make(self.name)
        script = str(Path(__file__).with_name("node.sh"))
        self.part("holder").launch(
            ["unshare", "--net", "--mount", "--uts", script, self.name, str(self.folder), *MOUNT_POINTS]
        )

    def connect(self, others: list[Node]) -> None:
        """Connects the node by a cable to the host's bridge; adds routes to the pods of `others` and to its own."""
        port = f"kube-e2e-{self.number}"
        ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(self.part("holder").pid))
        ip("link", "set", port, "master", BRIDGE, "up")
        self.run("ip", "link", "set", "eth0", "up")
        for network in self.networks:
            self._connect_by(network, others)

    def _connect_by(self, network: Network, others: list[Node]) -> None:
        family, own = f"-{network.version}", network.node(self.number)
        # An IPv6 address is usable at once if the kernel does not look for duplicates.
        more = ["nodad"] if network.version == 6 else []
        self.run("ip", family, "address", "add", network.with_prefix(own), "dev", "eth0", *more)
        self.run("ip", family, "route", "add", "default", "via", network.host)
        for other in others:
            there = network.node(other.number)
            self.run("ip", family, "route", "add", network.node_pods(other.number), "via", there)
        forwarding = "ipv4.ip_forward" if network.version == 4 else "ipv6.conf.all.forwarding"
        self.run("sysctl", "--quiet", "--write", f"net.{forwarding}=1")
        ip(family, "route", "replace", network.node_pods(self.number), "via", own, "dev", BRIDGE)

    def configure(self, plane: ControlPlane) -> None:
        self._write_network()
        # Without this the first address of a pod is of IPv4.
        preferred = f'ip_pref = "ipv{self.networks[0].version}"\n' if len(self.networks) > 1 else ""
        (self.folder / "containerd.toml").write_text(_CONTAINERD + preferred)
        (self.folder / "kubelet.json").write_text(json.dumps(self._kubelet(plane), indent=1))

    def launch(self, plane: ControlPlane, *programs: str) -> None:
        commands = {
            "containerd": ["containerd", f"--config={self.folder / 'containerd.toml'}"],
            "kubelet": [
                *(str(PROGRAMS / "kubelet"), f"--config={self.folder / 'kubelet.json'}"),
                f"--kubeconfig={plane.folder / f'kubelet-{self.name}.kubeconfig'}",
                *(f"--hostname-override={self.name}", f"--node-ip={joined(self.addresses)}"),
            ],
            "kube-proxy": [
                *(str(PROGRAMS / "kube-proxy"), f"--kubeconfig={plane.folder / f'proxy-{self.name}.kubeconfig'}"),
                *(f"--hostname-override={self.name}", "--proxy-mode=nftables", f"--cluster-cidr={plane.pods}"),
                # The size of the connection table is the whole machine's, not the node's.
                *("--conntrack-max-per-core=0", "--conntrack-min=0"),
            ],
            "kube-netpol": [
                *(str(PROGRAMS / "kube-netpol"), f"--kubeconfig={plane.admin}", f"--hostname-override={self.name}"),
                f"--service-cluster-ip-range={plane.services}",
            ],
        }
        for program in programs:
            self.part(program).launch(self.inside(*commands[program]))

    def _write_network(self) -> None:
        bridge = {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            # A masqueraded packet would come from the other node, not from a pod that a NetworkPolicy allows.
            "ipMasq": False,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": network.node_pods(self.number)}] for network in self.networks],
                "routes": [{"dst": network.everywhere} for network in self.networks],
            },
        }
        ports = {"type": "portmap", "capabilities": {"portMappings": True}}
        content = {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, ports]}
        (self.folder / "root/etc/cni/net.d/10-pods.conflist").write_text(json.dumps(content, indent=1))

    def _kubelet(self, plane: ControlPlane) -> dict[str, object]:
        files = plane.certificates
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": False}, "x509": {"clientCAFile": str(files / "ca.crt")}},
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(files / f"{self.name}.crt"),
            "tlsPrivateKeyFile": str(files / f"{self.name}.key"),
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "cgroupDriver": "cgroupfs",
            # Without a root of its own each kubelet removes the other's pods.
            "cgroupRoot": f"/{self.name}",
            "cgroupsPerQOS": True,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            # Images come from no registry: one that is removed does not come back, not even when the disk is full.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {
                "memory.available": "0%",
                **{
                    f"{signal}.{what}": "0%" for signal in ("nodefs", "imagefs") for what in ("available", "inodesFree")
                },
            },
        }


def ip(*arguments: str) -> None:
    result = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {result.stderr.strip()}")


# `restrict_oom_score_adj`: root without CAP_SYS_RESOURCE may not lower the score, and every sandbox would die of it.
_CONTAINERD = """\
version = 2
disabled_plugins = [
  "io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
]

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/pause:1"
restrict_oom_score_adj = true

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "/etc/cni/net.d"
"""
