"""Adds volumes and mounts to pods. A pod with another volume of the same name or path is refused with PodError."""

from collections.abc import Mapping
from typing import Any

from remotegpu.api.pods import Object, PodError


def with_volume(spec: Object, volume: Mapping[str, Any]) -> Object:
    volumes = spec.get("volumes") or []
    same_name = next((each for each in volumes if each.get("name") == volume["name"]), None)
    if same_name is None:
        return {**spec, "volumes": [*volumes, volume]}
    if same_name != volume:
        raise PodError(f"volume {volume['name']!r}: RemoteGPU adds a volume of this name; give yours another")
    return spec


def with_mount(container: Object, mount: Mapping[str, Any]) -> Object:
    mounts = container.get("volumeMounts") or []
    existing = next((each for each in mounts if each.get("mountPath") == mount["mountPath"]), None)
    if existing is None:
        return {**container, "volumeMounts": [*mounts, mount]}
    if existing.get("name") != mount["name"]:
        raise PodError(
            f"container {container.get('name')!r}: RemoteGPU mounts its files at {mount['mountPath']}; mount volume "
            f"{existing.get('name')!r} somewhere else"
        )
    return container
