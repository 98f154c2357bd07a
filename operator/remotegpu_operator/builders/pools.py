"""What all appliances of a pool share: a Service for their names, who may reach them, and how many may be evicted."""

from typing import Any

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
from remotegpu_operator.builders.appliances import labels, owner, service_name

Object = dict[str, Any]


def _metadata(pool: GPUPool, namespace: str) -> Object:
    return {
        "name": service_name(pool.name),
        "namespace": namespace,
        "labels": labels(pool.name),
        "ownerReferences": [owner(pool)],
    }


def _selector(pool: GPUPool) -> dict[str, str]:
    own = labels(pool.name)
    return {key: own[key] for key in (NAME_LABEL, COMPONENT_LABEL, POOL_LABEL)}


def service(pool: GPUPool, namespace: str) -> Object:
    """Headless: clients get the pods' addresses from their claim; this is for people and for metrics."""
    ports = (("control", CONTROL_PORT), ("data", DATA_PORT), ("http", HTTP_PORT))
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(pool, namespace),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": _selector(pool),
            "ports": [{"name": name, "port": port, "targetPort": name} for name, port in ports],
        },
    }


def network_policy(pool: GPUPool, namespace: str) -> Object:
    """Pods with a share and the operator may connect, metrics are for the namespace; an appliance itself needs only the
    API server, whose address a policy cannot name, so its way out is left open."""
    operator = {"matchLabels": {NAME_LABEL: "remotegpu", COMPONENT_LABEL: "operator"}}
    clients = {"namespaceSelector": {}, "podSelector": {"matchLabels": {POD_LABEL: POD_LABEL_VALUE}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(pool, namespace),
        "spec": {
            "podSelector": {"matchLabels": _selector(pool)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {
                    "from": [clients, {"podSelector": operator}],
                    "ports": [{"protocol": "TCP", "port": port} for port in (CONTROL_PORT, DATA_PORT)],
                },
                {"from": [{"podSelector": {}}], "ports": [{"protocol": "TCP", "port": HTTP_PORT}]},
            ],
        },
    }


def disruption_budget(pool: GPUPool, namespace: str) -> Object:
    """A voluntary eviction takes one appliance at a time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(pool, namespace),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": _selector(pool)}},
    }
