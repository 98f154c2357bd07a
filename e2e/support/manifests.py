"""Objects as a user would write them. Every pod passes the `restricted` Pod Security Standard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from support.kubectl import Object

from remotegpu.api.kubernetes import API_VERSION, FRACTION

IMAGE = "localhost/remotegpu-examples:dev"
PROGRAMS = "/programs"

Values = Mapping[str, Any]


def pod_spec(
    command: Sequence[str], *, limits: Values | None = None, requests: Values | None = None, seconds_to_end: int = 2
) -> Object:
    """Returns the spec of a pod with one container that runs `command`; test programs are in /programs."""
    resources = {name: dict(values) for name, values in (("limits", limits), ("requests", requests)) if values}
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": seconds_to_end,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "main",
                "image": IMAGE,
                "imagePullPolicy": "Never",
                "command": list(command),
                "env": [{"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}],
                "resources": resources,
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [{"name": "programs", "mountPath": PROGRAMS}],
            }
        ],
        "volumes": [{"name": "programs", "configMap": {"name": "programs", "optional": True}}],
    }


def pod(
    name: str,
    command: Sequence[str],
    *,
    fraction: str | float | None = None,
    limits: Values | None = None,
    requests: Values | None = None,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> Object:
    share = {} if fraction is None else {FRACTION: fraction}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": dict(annotations or {}), "labels": dict(labels or {})},
        "spec": pod_spec(command, limits={**share, **(limits or {})}, requests=requests),
    }


def program(name: str, *arguments: str) -> list[str]:
    """The command that runs a test program in a pod."""
    return ["python3", "-u", f"{PROGRAMS}/{name}", *arguments]


def job(name: str, command: Sequence[str], *, fraction: str | float) -> Object:
    template = {"spec": pod_spec(command, limits={FRACTION: fraction})}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"backoffLimit": 0, "template": template},
    }


def deployment(
    name: str,
    command: Sequence[str],
    *,
    replicas: int,
    fraction: str | float,
    pool: str | None = None,
    max_surge: int | str = "25%",
) -> Object:
    labels = {"app": name}
    spec = pod_spec(command, limits={FRACTION: fraction}) | {"restartPolicy": "Always"}
    annotations = {"remotegpu.io/pool": pool} if pool else {}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "strategy": {"rollingUpdate": {"maxSurge": max_surge, "maxUnavailable": 1}},
            "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec},
        },
    }


def claim(name: str, **spec: Any) -> Object:
    return {"apiVersion": API_VERSION, "kind": "GPUClaim", "metadata": {"name": name}, "spec": spec}


def software_pool(name: str, *, node: str | None = None, memory: str = "1Gi", **spec: Any) -> Object:
    """A pool of software GPUs, one on the named node or on each."""
    selector = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    whole = {"backend": "software", "software": {"gpus": 1, "memory": memory}, **selector, **spec}
    return {"apiVersion": API_VERSION, "kind": "GPUPool", "metadata": {"name": name}, "spec": whole}


# For both families where the pod has IPv6.
LISTEN = """
import os, socket, sys
both = os.path.exists("/proc/net/if_inet6")
family = socket.AF_INET6 if both else socket.AF_INET
listener = socket.create_server(("", int(sys.argv[1])), family=family, dualstack_ipv6=both)
print("listens", flush=True)
while True:
    listener.accept()
"""


def listening(port: int) -> list[str]:
    """Returns the command of a container that takes connections; it prints `listens` once it can."""
    return ["python3", "-c", LISTEN, str(port)]
