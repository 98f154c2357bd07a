"""Builds the objects that a pool's appliances share: a headless Service, a network policy and a disruption budget."""

import contextlib
import ipaddress
from typing import Any, Final

from remotegpu.api.kubernetes import (
    COMPONENT_LABEL,
    CONTROL_PORT,
    DATA_PORT,
    HTTP_PORT,
    NAME_LABEL,
    POD_LABEL,
    POD_LABEL_VALUE,
    POOL_LABEL,
)
from remotegpu.api.pools import GPUPool
from remotegpu_operator.builders.appliances import ApiAddress, Installation, labels, owner, service_name

Object = dict[str, Any]

_DNS_PORT: Final = 53


def _metadata(pool: GPUPool, installation: Installation) -> Object:
    return {
        "name": service_name(pool.name),
        "namespace": installation.namespace,
        "labels": labels(pool.name),
        "ownerReferences": [owner(pool)],
    }


def _selector(pool: GPUPool) -> dict[str, str]:
    own = labels(pool.name)
    return {key: own[key] for key in (NAME_LABEL, COMPONENT_LABEL, POOL_LABEL)}


def service(pool: GPUPool, installation: Installation) -> Object:
    """Builds the headless Service, for people and metrics. Clients get the appliances' addresses from their claim."""
    ports = (("control", CONTROL_PORT), ("data", DATA_PORT), ("http", HTTP_PORT))
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(pool, installation),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": _selector(pool),
            "ports": [{"name": name, "port": port, "targetPort": name} for name, port in ports],
        },
    }


def network_policy(pool: GPUPool, installation: Installation) -> Object:
    """Builds the network policy of a pool's appliances.

    Pods with a share, the operator and the pool's other appliances may connect. Pods of the same namespace and of the
    namespaces with the labels `metrics_from` may read metrics. If `api_servers` are known, an appliance may connect
    only to the API server, the DNS and the pool's other appliances.
    """
    appliances = {"podSelector": {"matchLabels": _selector(pool)}}
    connections = [{"protocol": "TCP", "port": port} for port in (CONTROL_PORT, DATA_PORT)]
    operator = {"matchLabels": {NAME_LABEL: "remotegpu", COMPONENT_LABEL: "operator"}}
    clients = {"namespaceSelector": {}, "podSelector": {"matchLabels": {POD_LABEL: POD_LABEL_VALUE}}}
    monitors: list[Object] = [{"podSelector": {}}]
    if installation.metrics_from:
        monitors.append({"namespaceSelector": {"matchLabels": dict(installation.metrics_from)}})
    spec: Object = {
        "podSelector": {"matchLabels": _selector(pool)},
        "policyTypes": ["Ingress"],
        "ingress": [
            {
                "from": [clients, {"podSelector": operator}, appliances],
                "ports": connections,
            },
            {"from": monitors, "ports": [{"protocol": "TCP", "port": HTTP_PORT}]},
        ],
    }
    if installation.api_servers:
        names = {"ports": [{"protocol": protocol, "port": _DNS_PORT} for protocol in ("UDP", "TCP")]}
        spec["policyTypes"].append("Egress")
        peers = {"to": [appliances], "ports": connections}
        spec["egress"] = [names, *map(_way_to, installation.api_servers), peers]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(pool, installation),
        "spec": spec,
    }


def _way_to(api_server: ApiAddress) -> Object:
    return {
        "to": [{"ipBlock": {"cidr": f"{ipaddress.ip_network(api_server.ip)}"}}],
        "ports": [{"protocol": "TCP", "port": api_server.port}],
    }


def api_addresses(endpoint_slice: Object, service_host: str, service_port: str) -> tuple[ApiAddress, ...]:
    """Returns the API server's addresses: those of its EndpointSlice, and of its Service from a pod's variables.

    Both are needed, because a network plugin may check either address. Returns an empty tuple if the slice is empty.
    """
    ips = {ip for endpoint in endpoint_slice.get("endpoints") or () for ip in endpoint["addresses"]}
    found = {ApiAddress(ip, port["port"]) for ip in ips for port in endpoint_slice.get("ports") or ()}
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(service_host)
        if found:
            found.add(ApiAddress(service_host, int(service_port)))
    return tuple(sorted(found))


def disruption_budget(pool: GPUPool, installation: Installation) -> Object:
    """Builds the disruption budget, which lets evictions stop only one appliance of a pool at a time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(pool, installation),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": _selector(pool)}},
    }
