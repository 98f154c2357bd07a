"""Finds the unhealthy devices of this node: those of pods whose claim has a failed GPU.

A device belongs to no GPU until the kubelet allocates it to a pod. The kubelet's checkpoint lists the pod of each
device, and the claims list the pods whose GPU failed. For an unhealthy device the kubelet
 - no longer counts the device as allocatable,
 - reports it in the pod's `allocatedResourcesStatus`, if the cluster has that feature (KEP-4680),
 - does not stop the pod.
"""

import asyncio
import contextlib
import json
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from kubernetes.aio import client

from remotegpu.api.claims import Reason
from remotegpu.api.kubernetes import CLAIMS
from remotegpu_deviceplugin.watching import snapshots

# The interval for reading the checkpoint while a claim has an unhealthy GPU: more pods of the claim may start.
_AGAIN_SECONDS: Final = 10.0

_log = logging.getLogger(__name__)

Devices = Mapping[str, Collection[str]]


async def watch(api: client.CustomObjectsApi, checkpoint: Path, tell: Callable[[Devices], Awaitable[None]]) -> None:
    """Calls `tell` with the ids of the unhealthy devices by resource, whenever they may have changed; never returns."""
    pods: set[str] = set()
    changed = asyncio.Event()

    async def learn() -> None:
        nonlocal pods
        async for claims in snapshots(api, CLAIMS, field_selector=f"status.reason={Reason.GPU_UNHEALTHY}"):
            pods = {pod["uid"] for claim in claims for pod in claim["status"].get("consumers", ())}
            changed.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(learn())
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_AGAIN_SECONDS if pods else None):
                    await changed.wait()
            changed.clear()
            await tell(devices_of(checkpoint, pods))


def devices_of(checkpoint: Path, pods: Collection[str]) -> dict[str, set[str]]:
    """Returns the ids of these pods' devices by resource, from the kubelet's checkpoint.

    `pods` are uids. Returns an empty dict if the checkpoint has an unexpected form: its format is not public (see
    `files.CHECKPOINT`). An entry has PodUID, ResourceName, and DeviceIDs as lists by NUMA node.
    """
    found: defaultdict[str, set[str]] = defaultdict(set)
    if not pods:
        return found
    try:
        for entry in json.loads(checkpoint.read_text())["Data"]["PodDeviceEntries"] or []:
            if entry["PodUID"] in pods:
                found[entry["ResourceName"]].update(*map(set, entry["DeviceIDs"].values()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        _log.warning("the kubelet is not told which devices failed: %s is not understood (%r)", checkpoint, error)
        return {}
    return found
