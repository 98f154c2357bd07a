"""Reads the schemas in crds/, and writes objects to an API server that serves them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml
from kubernetes import client, config
from support.apiserver import ApiServer
from support.system import ROOT, until

from remotegpu.api.kubernetes import API_VERSION, CLAIMS, GROUP, POOLS, VERSION

FILES = {"GPUPool": ROOT / "crds" / "gpupools.yaml", "GPUClaim": ROOT / "crds" / "gpuclaims.yaml"}
ACCEPTED = ""

Object = dict[str, Any]


def version(kind: str) -> Object:
    """Returns the only version of a CRD."""
    (only,) = yaml.safe_load(FILES[kind].read_text())["spec"]["versions"]
    return dict(only)


def schema(kind: str) -> Object:
    found: Object = version(kind)["schema"]["openAPIV3Schema"]
    return found


def fields(part: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Object]]:
    """Yields path ("spec.software.gpus") and schema of each field in a schema. Items have the path of their list."""
    while "items" in part:
        part = part["items"]
    for name, below in part.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        yield here, below
        yield from fields(below, here)


class Served:
    """Writes objects like a client, in the namespace `default`, each with its own name."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        for file in FILES.values():
            server.kubectl("apply", "--server-side", "-f", str(file))
        # The condition Established is set a moment before the objects are served.
        until(
            lambda: server.kubectl("get", "gpupools,gpuclaims", check=False).returncode == 0,
            30,
            "GPUPools and GPUClaims are served",
        )
        self._objects = client.CustomObjectsApi(config.new_client_from_config(str(server.kubeconfig)))
        self._numbers = itertools.count()

    def create(self, kind: str, spec: Mapping[str, Any], name: str = "") -> Object:
        name = name or f"{kind.lower()}-{next(self._numbers)}"
        body = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
        if kind == "GPUPool":
            return _object(self._objects.create_cluster_custom_object(GROUP, VERSION, POOLS, body))
        return _object(self._objects.create_namespaced_custom_object(GROUP, VERSION, "default", CLAIMS, body))

    def patch(self, stored: Object, part: Mapping[str, Any]) -> Object:
        """Applies a merge patch. A patch with nothing but `status` goes to the status subresource."""
        name, status = stored["metadata"]["name"], "_status" if set(part) == {"status"} else ""
        if stored["kind"] == "GPUPool":
            call = getattr(self._objects, f"patch_cluster_custom_object{status}")
            return _object(call(GROUP, VERSION, POOLS, name, part))
        call = getattr(self._objects, f"patch_namespaced_custom_object{status}")
        return _object(call(GROUP, VERSION, "default", CLAIMS, name, part))

    def delete_all(self) -> None:
        self.server.kubectl("delete", "gpupools,gpuclaims", "--all", "--namespace=default")


def refusal(write: Callable[..., Object], *arguments: Any) -> str:
    """Returns the API server's error for a write; empty if the write is accepted."""
    try:
        write(*arguments)
    except client.ApiException as error:
        return str(json.loads(error.body)["message"])
    return ACCEPTED


def _object(answer: object) -> Object:
    assert isinstance(answer, dict)
    return answer
