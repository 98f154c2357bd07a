"""Plans the appliances of a pool, and builds the StatefulSet and the certificate's Secret of each appliance."""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final

from remotegpu.api.addresses import EVERYWHERE
from remotegpu.api.durations import format_duration
from remotegpu.api.kubernetes import (
    API_VERSION,
    APPLIANCE_LABEL,
    COMPONENT_LABEL,
    CONTROL_PORT,
    DATA_PORT,
    HTTP_PORT,
    LOCAL,
    LOCAL_SOCKETS,
    MANAGER_LABEL,
    NAME_LABEL,
    POOL_LABEL,
    STATUS_PREFIX,
)
from remotegpu.api.modes import Backend, ComputeMode, WorkerWrites
from remotegpu.api.pools import GPUPool
from remotegpu.api.quantities import format_quantity
from remotegpu_operator.builders.memory import memory_limit

Object = dict[str, Any]

CUDA_RESOURCE: Final = "nvidia.com/gpu"
TLS_DIRECTORY: Final = "/etc/remotegpu/tls"
# The time that running sessions have after SIGTERM, before the kubelet kills the appliance.
DRAIN_SECONDS: Final = 25
GRACE_SECONDS: Final = DRAIN_SECONDS + 10
# An annotation of the StatefulSet with the node's name. The operator reads it when no pool selects the node any more.
NODE_ANNOTATION: Final = f"{STATUS_PREFIX}node"
_USER: Final = 65532
# Measured on 2026-11-25 on the software GPU: 60 MiB idle, and 6 MiB for a session in addition to its GPU memory.
_REQUESTS: Final = {"cpu": "100m", "memory": "128Mi"}
_COMPONENT: Final = "appliance"


@dataclass(frozen=True, slots=True, order=True)
class ApiAddress:
    """An address of the API server, in the form that a network policy needs."""

    ip: str
    port: int


@dataclass(frozen=True, slots=True)
class Installation:
    """The settings that all pools of a cluster share."""

    namespace: str
    image: str
    image_pull_policy: str
    # Labels of other namespaces whose pods may read metrics; empty: no other namespace.
    metrics_from: Mapping[str, str] = field(default_factory=dict)
    # Whether a network policy lets appliances reach only the API server, the DNS and each other.
    close_egress: bool = False
    api_servers: tuple[ApiAddress, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """An appliance that should exist."""

    name: str
    pool: GPUPool
    node: str
    gpus: int
    memory_limit: int | None = None  # in bytes; None if the pool sets the limit, or if it is unknown


def appliance_name(pool: GPUPool, node: str) -> str:
    digest = hashlib.sha256(f"{pool.uid}{node}".encode()).hexdigest()[:5]
    return f"{f'appliance-{pool.name}-{node}'.replace('.', '-')[:40].rstrip('-')}-{digest}"


def plans(pool: GPUPool, nodes: list[Object]) -> list[Plan]:
    """Returns one appliance for every node with GPUs that the pool selects and whose taints the pool tolerates."""
    chosen = (node for node in nodes if _selected(pool, node) and _tolerated(pool, node))
    found = [(node["metadata"]["name"], _gpus(pool, node), node) for node in chosen]
    return [
        Plan(appliance_name(pool, name), pool, name, gpus, memory_limit(pool, node, gpus))
        for name, gpus, node in sorted(found, key=itemgetter(0))
        if gpus > 0
    ]


def labels(pool: str, appliance: str = "") -> dict[str, str]:
    """Returns the labels of an appliance's objects. Without `appliance`, those of objects that a whole pool shares."""
    return {
        NAME_LABEL: "remotegpu",
        COMPONENT_LABEL: _COMPONENT,
        MANAGER_LABEL: "remotegpu-operator",
        POOL_LABEL: pool,
        **({APPLIANCE_LABEL: appliance} if appliance else {}),
    }


def owner(pool: GPUPool) -> Object:
    return {
        "apiVersion": API_VERSION,
        "kind": "GPUPool",
        "name": pool.name,
        "uid": pool.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def tls_secret_name(appliance: str) -> str:
    return f"{appliance}-tls"


def tls_secret(plan: Plan, namespace: str, certificate: str, key: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {
            "name": tls_secret_name(plan.name),
            "namespace": namespace,
            "labels": labels(plan.pool.name, plan.name),
            "ownerReferences": [owner(plan.pool)],
        },
        "data": {
            "tls.crt": base64.b64encode(certificate.encode()).decode(),
            "tls.key": base64.b64encode(key.encode()).decode(),
        },
    }


def stateful_set(plan: Plan, installation: Installation) -> Object:
    """Builds the StatefulSet. Its strategy is OnDelete: the operator deletes an outdated pod when no claim uses it."""
    pool = plan.pool
    own = labels(pool.name, plan.name)
    # The selector cannot be changed later, so it has only the labels that identify the pod.
    selector = {key: own[key] for key in (NAME_LABEL, COMPONENT_LABEL, POOL_LABEL, APPLIANCE_LABEL)}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {
            "name": plan.name,
            "namespace": installation.namespace,
            "labels": own,
            "annotations": {NODE_ANNOTATION: plan.node},
            "ownerReferences": [owner(pool)],
        },
        "spec": {
            "replicas": 1,
            "serviceName": service_name(pool.name),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "revisionHistoryLimit": 2,
            "selector": {"matchLabels": selector},
            "template": {"metadata": {"labels": own}, "spec": _pod_spec(plan, installation)},
        },
    }


def service_name(pool: str) -> str:
    return f"remotegpu-appliances-{pool}"


def _pod_spec(plan: Plan, installation: Installation) -> Object:
    spec = plan.pool.spec
    pod: Object = {
        "serviceAccountName": "remotegpu-appliance",
        # The appliance reads claims and requests TokenReviews.
        "automountServiceAccountToken": True,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "affinity": {"nodeAffinity": _on_node(plan.node)},
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(plan, installation)],
        "volumes": [
            {"name": "tls", "secret": {"secretName": tls_secret_name(plan.name), "defaultMode": 0o440}},
            {"name": "tmp", "emptyDir": {"sizeLimit": format_quantity(spec.temporary_storage)}},
        ],
    }
    if spec.tolerations:
        pod["tolerations"] = [dict(toleration) for toleration in spec.tolerations]
    if spec.priority_class_name:
        pod["priorityClassName"] = spec.priority_class_name
    if spec.runtime_class_name:
        pod["runtimeClassName"] = spec.runtime_class_name
    return pod


def _container(plan: Plan, installation: Installation) -> Object:
    spec = plan.pool.spec
    resources: Object = {key: dict(value) for key, value in spec.resources.items()}
    requests = {key: value for key, value in _REQUESTS.items() if key not in resources.get("limits", {})}
    if requests := requests | resources.get("requests", {}):
        resources["requests"] = requests
    if plan.memory_limit is not None:
        resources["limits"] = resources.get("limits", {}) | {"memory": format_quantity(plan.memory_limit)}
    if spec.backend is Backend.CUDA:
        resources["limits"] = resources.get("limits", {}) | {CUDA_RESOURCE: str(plan.gpus)}
    if spec.local_sockets:
        # The device plugin mounts the folder. A hostPath in the pod would violate the Pod Security Standard
        # `restricted`.
        resources["limits"] = resources.get("limits", {}) | {LOCAL_SOCKETS: "1"}
    return {
        "name": "appliance",
        "image": spec.image or installation.image,
        "imagePullPolicy": spec.image_pull_policy or installation.image_pull_policy,
        "args": _arguments(plan, installation),
        "ports": [
            {"name": "control", "containerPort": CONTROL_PORT},
            {"name": "data", "containerPort": DATA_PORT},
            {"name": "http", "containerPort": HTTP_PORT},
        ],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "http"}, "periodSeconds": 2, "timeoutSeconds": 2},
        # Generous limits: the probe must not fail while sessions use every core.
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": "http"},
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
        "resources": resources,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "tls", "mountPath": TLS_DIRECTORY, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 (in the pod, an emptyDir of its own)
        ],
    }


def _arguments(plan: Plan, installation: Installation) -> list[str]:
    spec = plan.pool.spec
    options = {
        "--name": plan.name,
        "--pool": plan.pool.name,
        "--listen": f"[{EVERYWHERE}]:{CONTROL_PORT}",
        "--cert": f"{TLS_DIRECTORY}/tls.crt",
        "--key": f"{TLS_DIRECTORY}/tls.key",
        **({"--local-sockets": LOCAL} if spec.local_sockets else {}),
        "--http": f"[{EVERYWHERE}]:{HTTP_PORT}",
        "--operator-account": f"{installation.namespace}:remotegpu-operator",
        "--backend": spec.backend.value,
        "--drain-seconds": str(DRAIN_SECONDS),
        "--grace": format_duration(spec.connection_grace),
        "--landlock": plan.pool.landlock.value.lower(),
    }
    if spec.backend is Backend.SOFTWARE:
        options |= {"--gpus": str(plan.gpus), "--memory": str(spec.software.memory)}
        if spec.software.threads:
            options["--threads"] = str(spec.software.threads)
    if spec.compute_mode is not ComputeMode.SHARED:
        options["--compute-mode"] = spec.compute_mode.value.lower()
    if spec.move_bandwidth is not None:
        options["--move-bandwidth"] = str(spec.move_bandwidth)
    if spec.worker_writes is not WorkerWrites.ANYWHERE:
        options["--worker-writes"] = spec.worker_writes.value.lower()
    if spec.public_code:
        options["--public-code"] = spec.public_code
    if spec.managed_memory is not None:
        options["--managed-memory"] = str(spec.managed_memory)
    if spec.limits.sessions_per_gpu:
        options["--sessions-per-gpu"] = str(spec.limits.sessions_per_gpu)
    if spec.limits.sessions_per_claim:
        options["--sessions-per-lease"] = str(spec.limits.sessions_per_claim)
    if spec.limits.sessions_per_namespace:
        options["--sessions-per-tenant"] = str(spec.limits.sessions_per_namespace)
    if spec.limits.host_memory_per_claim is not None:
        options["--host-memory-per-lease"] = str(spec.limits.host_memory_per_claim)
    if spec.limits.host_memory_per_namespace is not None:
        options["--host-memory-per-tenant"] = str(spec.limits.host_memory_per_namespace)
    environments = (("--offload", environment.option) for environment in spec.offload)
    return ["appliance", "--kubernetes", *(word for option in (*options.items(), *environments) for word in option)]


def _on_node(node: str) -> Object:
    """Builds the affinity that pins the pod to the node by name, as for the pods of a DaemonSet.

    A node's labels may be wrong, and `nodeName` would bypass the scheduler.
    """
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}


def _selected(pool: GPUPool, node: Object) -> bool:
    found = node["metadata"].get("labels") or {}
    return all(found.get(key) == value for key, value in pool.spec.node_selector.items())


def _tolerated(pool: GPUPool, node: Object) -> bool:
    """Whether the pool tolerates the node's taints. Kubernetes' own taints, about the node's health, do not count."""
    taints = (node.get("spec") or {}).get("taints") or []
    return all(
        taint["key"].startswith("node.kubernetes.io/")
        or taint["effect"] == "PreferNoSchedule"
        or any(tolerates(toleration, taint) for toleration in pool.spec.tolerations)
        for taint in taints
    )


def tolerates(toleration: Any, taint: Object) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if not toleration.get("key"):
        return bool(toleration.get("operator") == "Exists")
    if toleration["key"] != taint["key"]:
        return False
    same = toleration.get("value", "") == taint.get("value", "")
    return toleration.get("operator", "Equal") == "Exists" or bool(same)


def _gpus(pool: GPUPool, node: Object) -> int:
    if pool.spec.backend is Backend.SOFTWARE:
        return pool.spec.software.gpus
    if pool.spec.gpus_per_node:
        return pool.spec.gpus_per_node
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return int(allocatable.get(CUDA_RESOURCE, "0"))
