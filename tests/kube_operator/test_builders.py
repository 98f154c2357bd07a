"""Tests of the manifests of appliances and pools, compared as a whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from remotegpu.api.pools import GPUPool
from remotegpu_operator.builders.appliances import (
    ApiAddress,
    Installation,
    Plan,
    appliance_name,
    plans,
    stateful_set,
    tls_secret,
)
from remotegpu_operator.builders.pools import api_addresses, disruption_budget, network_policy, service

INSTALLATION = Installation("remotegpu-system", "localhost/remotegpu-appliance:dev", "IfNotPresent")
UID = "11111111-2222-3333-4444-555555555555"
NAME = "appliance-default-node-a-96d55"
OWNER = {
    "apiVersion": "remotegpu.io/v1alpha1",
    "kind": "GPUPool",
    "name": "default",
    "uid": UID,
    "controller": True,
    "blockOwnerDeletion": False,
}
SELECTOR = {
    "app.kubernetes.io/name": "remotegpu",
    "app.kubernetes.io/component": "appliance",
    "remotegpu.io/pool": "default",
}
LABELS = SELECTOR | {"app.kubernetes.io/managed-by": "remotegpu-operator"}


def pool(**spec: Any) -> GPUPool:
    return GPUPool.from_object({"metadata": {"name": "default", "uid": UID}, "spec": spec})


def node(name: str, labels: dict[str, str] | None = None, taints: Any = None, gpus: int = 0) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints},
        "status": {"allocatable": {"nvidia.com/gpu": str(gpus)} if gpus else None},
    }


def test_stateful_set_of_a_software_pool() -> None:
    plan = Plan(NAME, pool(software={"gpus": 2, "memory": "4Gi", "threads": 3}), "node-a", 2)
    own = LABELS | {"remotegpu.io/appliance": NAME}
    assert stateful_set(plan, INSTALLATION) == {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {
            "name": NAME,
            "namespace": "remotegpu-system",
            "labels": own,
            "annotations": {"status.remotegpu.io/node": "node-a"},
            "ownerReferences": [OWNER],
        },
        "spec": {
            "replicas": 1,
            "serviceName": "remotegpu-appliances-default",
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "revisionHistoryLimit": 2,
            "selector": {"matchLabels": SELECTOR | {"remotegpu.io/appliance": NAME}},
            "template": {
                "metadata": {"labels": own},
                "spec": {
                    "serviceAccountName": "remotegpu-appliance",
                    "automountServiceAccountToken": True,
                    "terminationGracePeriodSeconds": 35,
                    "affinity": {
                        "nodeAffinity": {
                            "requiredDuringSchedulingIgnoredDuringExecution": {
                                "nodeSelectorTerms": [
                                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-a"]}]}
                                ]
                            }
                        }
                    },
                    "securityContext": {
                        "runAsNonRoot": True,
                        "runAsUser": 65532,
                        "runAsGroup": 65532,
                        "fsGroup": 65532,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "containers": [
                        {
                            "name": "appliance",
                            "image": "localhost/remotegpu-appliance:dev",
                            "imagePullPolicy": "IfNotPresent",
                            "args": [
                                *(
                                    "appliance",
                                    "--kubernetes",
                                    "--name",
                                    NAME,
                                    "--pool",
                                    "default",
                                    "--listen",
                                    "[::]:7070",
                                ),
                                *("--cert", "/etc/remotegpu/tls/tls.crt", "--key", "/etc/remotegpu/tls/tls.key"),
                                *("--local-sockets", "/run/remotegpu", "--http", "[::]:7072"),
                                *("--operator-account", "remotegpu-system:remotegpu-operator"),
                                *("--backend", "software", "--drain-seconds", "25"),
                                *("--grace", "1m", "--landlock", "require"),
                                *("--gpus", "2", "--memory", str(4 << 30), "--threads", "3"),
                            ],
                            "ports": [
                                {"name": "control", "containerPort": 7070},
                                {"name": "data", "containerPort": 7071},
                                {"name": "http", "containerPort": 7072},
                            ],
                            "readinessProbe": {
                                "httpGet": {"path": "/readyz", "port": "http"},
                                "periodSeconds": 2,
                                "timeoutSeconds": 2,
                            },
                            "livenessProbe": {
                                "httpGet": {"path": "/healthz", "port": "http"},
                                "periodSeconds": 10,
                                "timeoutSeconds": 5,
                                "failureThreshold": 6,
                            },
                            "resources": {
                                "requests": {"cpu": "100m", "memory": "128Mi"},
                                "limits": {"remotegpu.io/local-sockets": "1"},
                            },
                            "securityContext": {
                                "allowPrivilegeEscalation": False,
                                "readOnlyRootFilesystem": True,
                                "capabilities": {"drop": ["ALL"]},
                            },
                            "volumeMounts": [
                                {"name": "tls", "mountPath": "/etc/remotegpu/tls", "readOnly": True},
                                {"name": "tmp", "mountPath": "/tmp"},
                            ],
                        }
                    ],
                    "volumes": [
                        {"name": "tls", "secret": {"secretName": f"{NAME}-tls", "defaultMode": 0o440}},
                        {"name": "tmp", "emptyDir": {"sizeLimit": "4Gi"}},
                    ],
                },
            },
        },
    }


def test_a_cuda_pool_differs_in_this_alone() -> None:
    spec = {
        "backend": "cuda",
        "runtimeClassName": "nvidia",
        "image": "registry.example/appliance:2",
        "imagePullPolicy": "Always",
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "managedMemory": "512Mi",
        "limits": {
            "sessionsPerGPU": 8,
            "sessionsPerClaim": 4,
            "sessionsPerNamespace": 6,
            "hostMemoryPerClaim": "3Gi",
            "hostMemoryPerNamespace": "5Gi",
        },
        "landlock": "Warn",
        "workerWrites": "Devices",
        "compute": {"mode": "Turns"},
        "connectionGrace": "300s",
        "resources": {"limits": {"memory": "2Gi"}, "requests": {"cpu": "1"}},
        "priorityClassName": "gpus",
        "temporaryStorage": "1Gi",
    }
    made = stateful_set(Plan(NAME, pool(**spec), "node-a", 4), INSTALLATION)["spec"]["template"]["spec"]
    plain = stateful_set(Plan(NAME, pool(), "node-a", 1), INSTALLATION)["spec"]["template"]["spec"]
    container = made["containers"][0]
    assert container["resources"] == {
        "limits": {"memory": "2Gi", "nvidia.com/gpu": "4", "remotegpu.io/local-sockets": "1"},
        "requests": {"cpu": "1"},
    }
    tail = [
        *("--backend", "cuda", "--drain-seconds", "25", "--grace", "5m", "--landlock", "warn"),
        *("--compute-mode", "turns", "--worker-writes", "devices"),
        *("--managed-memory", str(512 << 20)),
        *("--sessions-per-gpu", "8", "--sessions-per-lease", "4", "--sessions-per-tenant", "6"),
        *("--host-memory-per-lease", str(3 << 30)),
        *("--host-memory-per-tenant", str(5 << 30)),
    ]
    assert container["args"][-len(tail) :] == tail
    same = {
        key: value for key, value in container.items() if key not in {"args", "resources", "image", "imagePullPolicy"}
    }
    assert same.items() <= plain["containers"][0].items()
    assert (container["image"], container["imagePullPolicy"]) == ("registry.example/appliance:2", "Always")
    assert made.keys() - plain.keys() == {"runtimeClassName", "tolerations", "priorityClassName"}
    assert (made["runtimeClassName"], made["tolerations"]) == ("nvidia", spec["tolerations"])
    assert (made["priorityClassName"], made["volumes"][1]["emptyDir"]) == ("gpus", {"sizeLimit": "1Gi"})


@pytest.mark.parametrize(
    ("given", "requests"),
    [
        ({"requests": {"memory": "1Gi"}}, {"cpu": "100m", "memory": "1Gi"}),
        # Without a request Kubernetes uses the limit as request.
        ({"limits": {"cpu": "2", "memory": "64Mi"}}, None),
    ],
)
def test_what_a_pool_says_of_resources_goes_before_our_defaults(given: Any, requests: Any) -> None:
    made = stateful_set(Plan(NAME, pool(resources=given, localSockets=False), "node-a", 1), INSTALLATION)
    resources = made["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert resources == given | ({"requests": requests} if requests else {})


def test_without_local_sockets_an_appliance_asks_for_its_gpus_alone() -> None:
    """A cluster autoscaler, which does not know our device plugin's resource, then finds a node for the appliance."""
    for backend, limits in (("cuda", {"nvidia.com/gpu": "4"}), ("software", {})):
        made = stateful_set(Plan(NAME, pool(backend=backend, localSockets=False), "node-a", 4), INSTALLATION)
        (container,) = made["spec"]["template"]["spec"]["containers"]
        assert container["resources"].get("limits", {}) == limits
        assert "--local-sockets" not in container["args"]


@pytest.mark.parametrize(
    ("allocatable", "spec", "limit"),
    [
        ("16Gi", {}, "12Gi"),
        ("16777216Ki", {}, "12Gi"),
        ("16106Mi", {}, "12032Mi"),
        # Budgets that need more than three quarters get 5/4 of their sum, but at most all that is allocatable.
        ("16Gi", {"limits": {"hostMemoryPerNamespace": "6Gi"}, "software": {"memory": "5Gi"}}, "14080Mi"),
        ("16Gi", {"software": {"memory": "8Gi", "gpus": 4}}, "16Gi"),
        ("16Gi", {"resources": {"limits": {"memory": "3Gi"}}}, "3Gi"),
        (None, {}, None),
        ("much", {}, None),
    ],
)
def test_an_appliance_has_a_limit_of_memory_from_its_node(allocatable: Any, spec: Any, limit: str | None) -> None:
    one = {"metadata": {"name": "n"}, "spec": {}, "status": {"allocatable": {"memory": allocatable}}}
    if allocatable is None:
        one["status"] = {}
    (plan,) = plans(pool(**spec), [one])
    resources = stateful_set(plan, INSTALLATION)["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert resources.get("limits", {}).get("memory") == limit
    assert resources["requests"].get("memory") == (None if "resources" in spec else "128Mi")


def test_what_a_pool_shares() -> None:
    metadata = {
        "name": "remotegpu-appliances-default",
        "namespace": "remotegpu-system",
        "labels": LABELS,
        "ownerReferences": [OWNER],
    }
    assert service(pool(), INSTALLATION) == {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": SELECTOR,
            "ports": [
                {"name": "control", "port": 7070, "targetPort": "control"},
                {"name": "data", "port": 7071, "targetPort": "data"},
                {"name": "http", "port": 7072, "targetPort": "http"},
            ],
        },
    }
    clients = {"namespaceSelector": {}, "podSelector": {"matchLabels": {"status.remotegpu.io/pod": "true"}}}
    operator = {
        "podSelector": {
            "matchLabels": {"app.kubernetes.io/name": "remotegpu", "app.kubernetes.io/component": "operator"}
        }
    }
    assert network_policy(pool(), INSTALLATION) == {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata,
        "spec": {
            "podSelector": {"matchLabels": SELECTOR},
            "policyTypes": ["Ingress"],
            "ingress": [
                {
                    "from": [clients, operator, {"podSelector": {"matchLabels": SELECTOR}}],
                    "ports": [{"protocol": "TCP", "port": 7070}, {"protocol": "TCP", "port": 7071}],
                },
                {"from": [{"podSelector": {}}], "ports": [{"protocol": "TCP", "port": 7072}]},
            ],
        },
    }
    assert disruption_budget(pool(), INSTALLATION) == {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata,
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": SELECTOR}},
    }


def test_a_policy_closes_the_way_out_but_for_names_and_the_api_server() -> None:
    api_servers = (ApiAddress("10.0.0.9", 6443), ApiAddress("fd00::1", 443))
    spec = network_policy(pool(), replace(INSTALLATION, api_servers=api_servers))["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert spec["egress"] == [
        {"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]},
        {"to": [{"ipBlock": {"cidr": "10.0.0.9/32"}}], "ports": [{"protocol": "TCP", "port": 6443}]},
        {"to": [{"ipBlock": {"cidr": "fd00::1/128"}}], "ports": [{"protocol": "TCP", "port": 443}]},
        {
            "to": [{"podSelector": {"matchLabels": SELECTOR}}],
            "ports": [{"protocol": "TCP", "port": 7070}, {"protocol": "TCP", "port": 7071}],
        },
    ]
    # Without known addresses egress stays open. Otherwise the appliances could not review tokens.
    assert "egress" not in network_policy(pool(), INSTALLATION)["spec"]


def test_a_policy_lets_a_monitor_of_another_namespace_in_where_it_is_named() -> None:
    monitoring = {"kubernetes.io/metadata.name": "monitoring"}
    spec = network_policy(pool(), replace(INSTALLATION, metrics_from=monitoring))["spec"]
    assert spec["ingress"][1] == {
        "from": [{"podSelector": {}}, {"namespaceSelector": {"matchLabels": monitoring}}],
        "ports": [{"protocol": "TCP", "port": 7072}],
    }


def test_where_the_api_server_is() -> None:
    both = [{"addresses": ["10.0.0.9"]}, {"addresses": ["10.0.0.8"]}]
    found = api_addresses({"endpoints": both, "ports": [{"name": "https", "port": 6443}]}, "10.96.0.1", "443")
    assert found == (ApiAddress("10.0.0.8", 6443), ApiAddress("10.0.0.9", 6443), ApiAddress("10.96.0.1", 443))
    # Without the slice the addresses behind the Service are unknown.
    assert api_addresses({}, "10.96.0.1", "443") == ()


def test_the_certificates_secret() -> None:
    made = tls_secret(Plan(NAME, pool(), "node-a", 1), "remotegpu-system", "certificate", "key")
    assert made == {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {
            "name": f"{NAME}-tls",
            "namespace": "remotegpu-system",
            "labels": LABELS | {"remotegpu.io/appliance": NAME},
            "ownerReferences": [OWNER],
        },
        "data": {"tls.crt": "Y2VydGlmaWNhdGU=", "tls.key": "a2V5"},
    }


def test_nodes_are_chosen_by_label_taint_and_gpus() -> None:
    taint = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
    nodes = [
        node("b", {"zone": "1"}, gpus=2),
        node("a", {"zone": "1"}, gpus=1),
        node("no-gpus", {"zone": "1"}),
        node("elsewhere", {"zone": "2"}, gpus=8),
        node("tainted", {"zone": "1"}, [taint], gpus=8),
        node("preferably-not", {"zone": "1"}, [taint | {"effect": "PreferNoSchedule"}], gpus=3),
        node("not-ready", {"zone": "1"}, [{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}], gpus=4),
    ]
    chosen = pool(backend="cuda", nodeSelector={"zone": "1"})
    found = {plan.node: plan.gpus for plan in plans(chosen, nodes)}
    assert found == {"a": 1, "b": 2, "preferably-not": 3, "not-ready": 4}
    for toleration in (
        {"key": "gpu", "operator": "Exists"},
        {"key": "gpu", "value": "yes", "effect": "NoSchedule"},
        {"operator": "Exists"},
    ):
        tolerant = pool(backend="cuda", nodeSelector={"zone": "1"}, tolerations=[toleration])
        assert {plan.node for plan in plans(tolerant, nodes)} == {*found, "tainted"}
    for toleration in ({"key": "gpu", "value": "no"}, {"key": "gpu", "operator": "Exists", "effect": "NoExecute"}):
        picky = pool(backend="cuda", nodeSelector={"zone": "1"}, tolerations=[toleration])
        assert {plan.node for plan in plans(picky, nodes)} == set(found)
    few = pool(backend="cuda", nodeSelector={"zone": "1"}, gpusPerNode=1)
    assert {plan.node: plan.gpus for plan in plans(few, nodes)}["b"] == 1
    software = pool(nodeSelector={"zone": "2"}, software={"gpus": 3})
    assert [(plan.node, plan.gpus) for plan in plans(software, nodes)] == [("elsewhere", 3)]


@pytest.mark.parametrize("length", [1, 20, 63, 253])
def test_names_of_appliances_are_short_labels_and_all_different(length: int) -> None:
    names = {
        appliance_name(replace(pool(), name=pool_name, uid=uid), node_name)
        for pool_name in ("p", "p" * 40)
        for uid in ("1", "2")
        for node_name in ("n" * length, "n" * (length - 1) + "m", "n.example"[:length])
    }
    assert len(names) == 2 * 2 * len({"n" * length, "n" * (length - 1) + "m", "n.example"[:length]})
    assert all(len(name) <= 46 and "." not in name and not name.endswith("-") for name in names)


def test_environments_of_a_pool_are_options_of_its_appliances() -> None:
    environments = [
        {"name": "torch", "python": "/opt/torch/bin/python", "backend": "rocm", "exclusive": True},
        {"name": "cuda", "python": "/opt/cuda/bin/python", "backend": "cuda", "cudaDirect": True},
        {"name": "sklearn", "python": "/opt/sklearn/bin/python"},
    ]
    plain, serving = (
        stateful_set(Plan(NAME, pool(**spec), "node-a", 1), INSTALLATION)["spec"]["template"]["spec"]["containers"][0]
        for spec in ({}, {"offload": environments})
    )
    values = [
        "torch=/opt/torch/bin/python:rocm,exclusive",
        "cuda=/opt/cuda/bin/python:cuda,direct",
        "sklearn=/opt/sklearn/bin/python",
    ]
    added = [word for value in values for word in ("--offload", value)]
    assert serving["args"] == [*plain["args"], *added]
    assert serving | {"args": plain["args"]} == plain


@pytest.mark.parametrize(
    ("spec", "status", "option"),
    [
        ({}, {}, "require"),
        ({}, {"observedGeneration": 1, "phase": "Ready"}, "warn"),
        ({}, {"observedGeneration": 1, "phase": "Ready", "landlock": "Require"}, "require"),
        ({}, {"observedGeneration": 1, "phase": "Ready", "landlock": "Warn"}, "warn"),
        ({"landlock": "Require"}, {"observedGeneration": 1, "landlock": "Warn"}, "require"),
        ({"landlock": "Warn"}, {}, "warn"),
    ],
)
def test_new_pools_require_landlock_and_older_ones_keep_what_they_had(
    spec: dict[str, Any], status: dict[str, Any], option: str
) -> None:
    stored = {"metadata": {"name": "gpus", "uid": "u"}, "spec": spec, "status": status}
    made = stateful_set(Plan(NAME, GPUPool.from_object(stored), "node-a", 1), INSTALLATION)
    arguments = made["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[arguments.index("--landlock") + 1] == option
