"""Adds volumes and mounts to pods. A pod with another volume of the same name or path is refused with PodError."""

from collections.abc import Mapping
from typing import Any

from remotegpu.api.pods import Container, Pod, PodError


def add_volume(pod: Pod, volume: Mapping[str, Any]) -> None:
    volumes = pod.spec.get("volumes") or []
    same_name = next((each for each in volumes if each.get("name") == volume["name"]), None)
    if same_name is None:
        pod.spec["volumes"] = [*volumes, volume]
    elif same_name != volume:
        raise PodError(f"volume {volume['name']!r}: RemoteGPU adds a volume of this name; give yours another")


def add_mount(container: Container, mount: Mapping[str, Any]) -> None:
    mounts = container.body.get("volumeMounts") or []
    existing = next((each for each in mounts if each.get("mountPath") == mount["mountPath"]), None)
    if existing is None:
        container.body["volumeMounts"] = [*mounts, mount]
    elif existing.get("name") != mount["name"]:
        raise PodError(
            f"container {container.name!r}: RemoteGPU mounts its files at {mount['mountPath']}; mount volume "
            f"{existing.get('name')!r} somewhere else"
        )
