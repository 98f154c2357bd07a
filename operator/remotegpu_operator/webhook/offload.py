"""Adds offload to a pod: the volume of its ConfigMap, and the variables by which Python finds the offload client.

Every container with a share has the client's files (`pod.sh`), but Python uses them only with these variables.
"""

from collections.abc import Iterable
from typing import Any, Final

from remotegpu.api.kubernetes import (
    CONNECT_PROGRAM,
    OFFLOAD_ANNOTATION,
    OFFLOAD_CONFIG,
    OFFLOAD_DIRECTORY,
    OFFLOAD_VOLUME,
    PYTHON_START_FOLDER,
)
from remotegpu.api.names import CONFIG_ENV, CONNECT_ENV
from remotegpu.api.pods import Container, Object, Pod, PodError
from remotegpu_operator.webhook.volumes import add_mount, add_volume

PYTHONPATH: Final = "PYTHONPATH"
_MOUNT: Final = {"name": OFFLOAD_VOLUME, "mountPath": OFFLOAD_DIRECTORY, "readOnly": True}
_VARIABLES: Final = {CONFIG_ENV: f"{OFFLOAD_DIRECTORY}/{OFFLOAD_CONFIG}", CONNECT_ENV: CONNECT_PROGRAM}


def add_offload(pod: Pod, config_map: str, chosen: Iterable[Container]) -> None:
    """Adds the ConfigMap's volume to the pod, and mount and variables to the `chosen` containers."""
    # With all defaults, as the API server stores the volume: a second pass then changes nothing.
    add_volume(pod, {"name": OFFLOAD_VOLUME, "configMap": {"name": config_map, "defaultMode": 0o644}})
    for container in chosen:
        container.body["env"] = _variables(container)
        add_mount(container, _MOUNT)


def _variables(container: Container) -> list[Any]:
    variables: list[Any] = list(container.body.get("env") or ())
    known = {each.get("name") for each in variables}
    variables = [_with_path(container, each) if each.get("name") == PYTHONPATH else each for each in variables]
    ours = {PYTHONPATH: PYTHON_START_FOLDER, **_VARIABLES}
    # Other variables that the pod sets itself stay unchanged.
    return variables + [{"name": name, "value": value} for name, value in ours.items() if name not in known]


def _with_path(container: Container, variable: Object) -> Object:
    """Returns the variable PYTHONPATH with our folder before the author's folders. Raises PodError for `valueFrom`."""
    if "valueFrom" in variable:
        raise PodError(
            f"container {container.name!r}: annotation {OFFLOAD_ANNOTATION} puts a folder before those of "
            f"{PYTHONPATH}, which here is taken from somewhere else: write its value, as {PYTHONPATH}: /app"
        )
    value = variable.get("value") or ""
    folders = value.split(":") if value else []
    if folders[:1] == [PYTHON_START_FOLDER]:
        return variable
    return {**variable, "value": ":".join([PYTHON_START_FOLDER, *folders])}
