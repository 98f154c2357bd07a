"""The cluster's addresses: IPv4 alone, or both families, of which Kubernetes prefers the first."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass

CHOICE = "REMOTEGPU_E2E_FAMILY"


@dataclass(frozen=True)
class Network:
    """The networks of one address family: for host, nodes, pods and Services."""

    version: int
    hosts: str
    pods: str
    services: str

    @property
    def host(self) -> str:
        """The machine's own address, on the bridge."""
        return self._host(1)

    @property
    def everywhere(self) -> str:
        return "0.0.0.0/0" if self.version == 4 else "::/0"

    @property
    def api(self) -> str:
        """The address of the API server's Service."""
        return str(ipaddress.ip_network(self.services)[1])

    def node(self, number: int) -> str:
        return self._host(10 + number)

    def node_pods(self, number: int) -> str:
        """Returns the node's network for pods: one 256th of the cluster's."""
        whole = ipaddress.ip_network(self.pods)
        return str(list(whole.subnets(prefixlen_diff=8))[number])

    def with_prefix(self, address: str) -> str:
        """Returns an address on the bridge in the form that `ip address add` takes."""
        return f"{address}/{ipaddress.ip_network(self.hosts).prefixlen}"

    def _host(self, number: int) -> str:
        return str(ipaddress.ip_network(self.hosts)[number])


IPV4 = Network(4, "10.100.0.0/24", "10.244.0.0/16", "10.96.0.0/16")
IPV6 = Network(6, "fd00:100::/64", "fd00:244::/56", "fd00:96::/112")
FAMILIES = {"ipv4": (IPV4,), "dual": (IPV4, IPV6), "dual-ipv6-first": (IPV6, IPV4)}


def chosen(name: str) -> tuple[Network, ...]:
    """The networks that REMOTEGPU_E2E_FAMILY names; RuntimeError for another name."""
    if name not in FAMILIES:
        raise RuntimeError(f"{CHOICE}={name} is none of {', '.join(FAMILIES)}; set it to one of them, or leave it out")
    return FAMILIES[name]


def joined(values: list[str]) -> str:
    """Joins one value of each family with commas, the form that Kubernetes' programs take."""
    return ",".join(values)


FAMILY = os.environ.get(CHOICE) or "ipv4"
