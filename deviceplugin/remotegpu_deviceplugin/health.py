"""Which devices of this node's pods stand for a GPU that failed.

Devices are all alike until a pod has them. Then the kubelet's memory says which pod that is, and the claims say whose
GPU failed. The kubelet counts a device that is unhealthy no longer as allocatable, tells it in the pod's
`allocatedResourcesStatus` where the cluster has that feature (KEP-4680), and lets the pod go on.
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

# While a claim's GPU is unhealthy its pods on this node are looked up so often: more of them may start.
_AGAIN_SECONDS: Final = 10.0

_log = logging.getLogger(__name__)

Devices = Mapping[str, Collection[str]]


async def watch(api: client.CustomObjectsApi, checkpoint: Path, tell: Callable[[Devices], Awaitable[None]]) -> None:
    """Tell the unhealthy devices by resource, again when they may have changed; never ends."""
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
    """The devices of these pods by resource, as the kubelet remembers them; none where that is not understood.

    The kubelet's file is no public format (see `files.CHECKPOINT`): entries with PodUID, ResourceName, and DeviceIDs as
    lists by NUMA node.
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
