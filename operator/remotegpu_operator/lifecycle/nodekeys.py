"""Removes our resources from the nodes' status after the end of the device plugin.

When a plugin ends, the kubelet keeps the resource in the node's status for five minutes. Then it writes 0 once, and
never removes the key. So the uninstall hook removes the keys at once, for the scheduler. It also starts this program as
a Job, which removes the keys that kubelets write later. The Job ends about six minutes after the uninstall, and deletes
its own ClusterRole.
"""

import asyncio
import logging
import signal
import sys
from typing import Any, Final

from remotegpu.api.kubernetes import CLIENT, LOCAL_SOCKETS, MILLI
from remotegpu_operator.cluster.kube import NODES, Api, ApiError, Object, Resource, Unanswered, configuration

_log = logging.getLogger(__name__)

CLUSTER_ROLES: Final = Resource("rbac.authorization.k8s.io/v1", "clusterroles", "ClusterRole")
NAME: Final = "remotegpu-nodekeys"
KEYS: Final = (MILLI, CLIENT, LOCAL_SOCKETS)
# The program ends when no kubelet has written our keys for this time. A kubelet writes its node every ten seconds.
QUIET_SECONDS: Final = 60.0
# The longest run. The five minutes of a kubelet that restarts begin again.
_GIVE_UP_SECONDS: Final = 900.0
_POLL_SECONDS: Final = 10.0


async def remove_keys(api: Api) -> None:
    """Removes our keys from every node."""
    for node in (await api.list(NODES))[0]:
        await _remove(api, node, [key for key in KEYS if _amounts(node, key) != (None, None)])


async def remove_forgotten_keys(api: Api) -> int:
    """Removes the keys that kubelets have set to 0. Returns the number of nodes with keys of an ended plugin.

    Capacity with nothing allocatable means that the kubelet waits for the ended plugin. An allocatable key belongs to a
    plugin that runs again, so to a later installation.
    """
    found = 0
    for node in (await api.list(NODES))[0]:
        amounts = {key: _amounts(node, key) for key in KEYS}
        orphaned = [key for key in KEYS if amounts[key] != (None, None) and amounts[key][1] in {None, "0"}]
        found += bool(orphaned)
        await _remove(api, node, [key for key in orphaned if amounts[key][0] in {None, "0"}])
    return found


def _amounts(node: Object, key: str) -> tuple[str | None, str | None]:
    """Returns the capacity and the allocatable amount of a resource, as texts; None for a missing key."""
    status = node["status"]
    return (status.get("capacity") or {}).get(key), (status.get("allocatable") or {}).get(key)


async def _remove(api: Api, node: Object, keys: list[str]) -> None:
    if not keys:
        return
    nothing = dict.fromkeys(keys)
    body: Object = {"status": {"capacity": nothing, "allocatable": nothing}}
    try:
        await api.patch(NODES, None, node["metadata"]["name"], body, "status")
    except ApiError as error:
        if not error.gone:
            raise


async def clean(api: Api, quiet_seconds: float) -> None:
    """Removes keys until no kubelet has written our keys for `quiet_seconds`, or for at most 15 minutes."""
    clock = asyncio.get_running_loop().time
    started = last = clock()
    while True:
        try:
            if await remove_forgotten_keys(api):
                last = clock()
        except (ApiError, *Unanswered) as error:
            _log.warning("the nodes cannot be read or written: %s; trying again", error)
            last = clock()
        if clock() - last >= quiet_seconds or clock() - started >= _GIVE_UP_SECONDS:
            return
        await asyncio.sleep(_POLL_SECONDS)


async def run(found: Any = None, quiet_seconds: float = QUIET_SECONDS) -> None:
    async with Api(found or await configuration()) as api:
        work = asyncio.ensure_future(clean(api, quiet_seconds))
        # The namespace may be deleted before the work is done. Then the program still deletes its ClusterRole.
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
