"""Takes our resources off the nodes after the device plugin has gone.

Kubelet keeps a resource whose plugin went away in its node's status for five minutes, writes 0 once when it forgets it,
and never takes the key off. So the hook removes the keys at once, for the scheduler, and starts this program as a Job
that removes what kubelet writes afterwards; it outlives the release by six minutes and then removes its own rights.
"""

import asyncio
import logging
import signal
import sys
from typing import Any, Final

from remotegpu.api.kubernetes import CLIENT, MILLI
from remotegpu_operator.kube import Api, ApiError, Object, Resource, Unanswered, configuration

_log = logging.getLogger(__name__)

NODES: Final = Resource("v1", "nodes", "Node")
CLUSTER_ROLES: Final = Resource("rbac.authorization.k8s.io/v1", "clusterroles", "ClusterRole")
NAME: Final = "remotegpu-nodekeys"
KEYS: Final = (MILLI, CLIENT)
# Kubelet's five minutes, and one report of it.
FORGOTTEN_SECONDS: Final = 330.0
# By then a kubelet that still has not reported is lost; when it comes back, it writes 0.
_GIVE_UP_SECONDS: Final = 900.0
_POLL_SECONDS: Final = 10.0


async def remove_keys(api: Api, *, only_forgotten: bool) -> int:
    """Take our keys off every node, or only those that kubelet has forgotten. On how many nodes it still has not.

    Capacity without anything allocatable: kubelet waits for a plugin that is gone. A key that is allocatable belongs to
    a plugin that is back, so to an installation that came after.
    """
    waiting = 0
    for node in (await api.list(NODES))[0]:
        capacity, allocatable = (node["status"].get(part) or {} for part in ("capacity", "allocatable"))
        present = [key for key in KEYS if key in capacity or key in allocatable]
        if only_forgotten:
            present = [key for key in present if allocatable.get(key, "0") == "0"]
            waiting += any(capacity.get(key, "0") != "0" for key in present)
            present = [key for key in present if capacity.get(key, "0") == "0"]
        if present:
            nothing = dict.fromkeys(present)
            body: Object = {"status": {"capacity": nothing, "allocatable": nothing}}
            try:
                await api.patch(NODES, None, node["metadata"]["name"], body, "status")
            except ApiError as error:
                if not error.gone:
                    raise
    return waiting


async def clean(api: Api, seconds: float) -> None:
    """Until every kubelet has forgotten the device plugin and no node has our keys."""
    started = asyncio.get_running_loop().time()
    while True:
        try:
            waiting = await remove_keys(api, only_forgotten=True)
        except (ApiError, *Unanswered) as error:
            _log.warning("the nodes cannot be read or written: %s; trying again", error)
            waiting = 1
        elapsed = asyncio.get_running_loop().time() - started
        if elapsed >= (_GIVE_UP_SECONDS if waiting else seconds):
            return
        await asyncio.sleep(_POLL_SECONDS)


async def run(found: Any = None, seconds: float = FORGOTTEN_SECONDS) -> None:
    async with Api(found or await configuration()) as api:
        work = asyncio.ensure_future(clean(api, seconds))
        # The namespace may be deleted before the six minutes are over: then at least no right is left.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
        try:
            await work
        except asyncio.CancelledError:
            _log.warning("stopped before every kubelet had forgotten the device plugin: nodes may keep keys of value 0")
        role = await api.get(CLUSTER_ROLES, None, NAME)
        await api.delete(CLUSTER_ROLES, None, NAME, role["metadata"]["uid"])


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    asyncio.run(run())


if __name__ == "__main__":
    main()
