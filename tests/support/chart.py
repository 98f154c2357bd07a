"""Renders the chart with helm."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from cluster.control_plane import PROGRAMS

Object = dict[str, Any]

CHART: Final = Path(__file__).parents[2] / "charts" / "remotegpu"
NAMESPACE: Final = "remotegpu-system"
MONITORING: Final = "monitoring.coreos.com/v1"


def helm(*arguments: str, kubeconfig: Path | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
    program = PROGRAMS / "helm"
    if not program.exists():
        pytest.skip(f"{program} is not built; `make cluster-programs` builds it")
    access = [f"--kubeconfig={kubeconfig}"] if kubeconfig else []
    result = subprocess.run([program, *access, *arguments], capture_output=True, text=True)
    assert not check or result.returncode == 0, f"helm {' '.join(arguments)}: {result.stderr}"
    return result


def render(values: Mapping[str, Any], folder: Path, *, release: str = "remotegpu", chart: Path = CHART) -> list[Object]:
    """Returns all objects of the chart with these values, hooks and tests included."""
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(dict(values)))
    options = ["--namespace", NAMESPACE, "--kube-version=1.34.0", f"--api-versions={MONITORING}", f"--values={file}"]
    text = helm("template", release, str(chart), *options).stdout
    return [thing for thing in yaml.safe_load_all(text) if thing]


def named(objects: list[Object], kind: str, name: str) -> Object:
    return next(thing for thing in objects if thing["kind"] == kind and thing["metadata"]["name"] == name)


def pod_specs(objects: list[Object]) -> dict[str, Object]:
    """Returns the specs of all pods of the chart by kind and name, also of the Job inside a ConfigMap."""
    found: dict[str, Object] = {}
    for thing in objects:
        name = f"{thing['kind']} {thing['metadata']['name']}"
        match thing["kind"]:
            case "Deployment" | "DaemonSet" | "Job":
                found[name] = thing["spec"]["template"]["spec"]
            case "Pod":
                found[name] = thing["spec"]
            case "ConfigMap" if "nodekeys.yaml" in thing["data"]:
                job = yaml.safe_load(thing["data"]["nodekeys.yaml"])
                found[f"Job {job['metadata']['name']}"] = job["spec"]["template"]["spec"]
    return found
