"""Removes our resources from the nodes after the device plugin has gone.

Kubelet keeps a resource whose plugin went away in its node's status for five minutes, writes 0 once when it forgets it,
and never removes the key. So the hook removes the keys at once, for the scheduler, and starts this program as a Job
that removes the keys that kubelet writes afterwards; it outlives the release by six minutes and then removes its own
rights.
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
# Kubelet reports every ten seconds, and writes a key again that it still knows.
QUIET_SECONDS: Final = 60.0
# A kubelet that restarts meanwhile begins its five minutes again.
_GIVE_UP_SECONDS: Final = 900.0
_POLL_SECONDS: Final = 10.0


async def remove_keys(api: Api) -> None:
    """Removes our keys from every node."""
    for node in (await api.list(NODES))[0]:
        await _remove(api, node, [key for key in KEYS if _amounts(node, key) != (None, None)])


async def remove_forgotten_keys(api: Api) -> int:
    """Removes keys that kubelet has set to 0; returns how many nodes had keys of a plugin that is gone.

    Capacity without anything allocatable: kubelet waits for a plugin that is gone. A key that is allocatable belongs to
    a plugin that is back, so to an installation that came after.
    """
    found = 0
    for node in (await api.list(NODES))[0]:
        amounts = {key: _amounts(node, key) for key in KEYS}
        orphaned = [key for key in KEYS if amounts[key] != (None, None) and amounts[key][1] in {None, "0"}]
        found += bool(orphaned)
        await _remove(api, node, [key for key in orphaned if amounts[key][0] in {None, "0"}])
    return found


def _amounts(node: Object, key: str) -> tuple[str | None, str | None]:
    """Returns the capacity, and how much of it is allocatable."""
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
    """Removes keys until no kubelet has written our keys again for a while."""
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
