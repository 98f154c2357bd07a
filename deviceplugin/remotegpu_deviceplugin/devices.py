"""The number of devices of a resource that a node offers, in the form that the kubelet expects."""

import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from remotegpu.api.modes import Backend
from remotegpu_deviceplugin._generated.deviceplugin_pb2 import Device, ListAndWatchResponse

# The kubelet takes no message above gRPC's 4 MiB, and then says nothing: the node keeps its old figure.
MESSAGE_LIMIT: Final = 4 << 20
# A device in the message: an id of up to six digits, "Healthy", and protobuf's five tags and lengths of the two.
_DEVICE_BYTES: Final = 19
# "Unhealthy" is longer; there is room for so many of them.
_MOST_UNHEALTHY: Final = 1 << 15
MOST_DEVICES: Final = (MESSAGE_LIMIT - 2 * _MOST_UNHEALTHY) // _DEVICE_BYTES

# Pods with `remotegpu/client` on one node; it limits nothing.
CLIENTS: Final = 1000
# Appliances with local sockets on one node, of all pools, and while they are replaced; it limits nothing either.
APPLIANCES: Final = 100


@dataclass(frozen=True, slots=True)
class Pools:
    """The figures of all pools together that a node needs."""

    milli: int
    # No pool has a GPU that executes machine code.
    software: bool

    @classmethod
    def from_objects(cls, pools: Iterable[dict[str, Any]]) -> "Pools":
        found = list(pools)
        return cls(
            milli=sum(pool.get("status", {}).get("total", {}).get("milli", 0) for pool in found),
            software=all(pool["spec"].get("backend", Backend.SOFTWARE) == Backend.SOFTWARE for pool in found),
        )

    def since(self, before: "Pools | None") -> "Pools":
        """Returns the figures to advertise after `before`; `milli` never shrinks. A pod may hold any of the ids, and a
        kubelet that starts with the node does not take back a pod whose ids are no longer offered. The figure only has
        to be large enough."""
        return self if before is None else replace(self, milli=max(self.milli, before.milli))

    @property
    def wanted(self) -> int:
        """`remotegpu/milli` of every node: twice what there is.

        The operator counts, not the scheduler. The share of a pod that is being deleted may be another pod's already,
        while the scheduler still counts the first one: with the exact figure it would preempt a pod.
        """
        return 2 * self.milli


def fitting(wanted: int) -> int:
    return min(wanted, MOST_DEVICES)


def listing(count: int, unhealthy: Collection[str] = ()) -> ListAndWatchResponse:
    """Builds the kubelet's list of devices. Health does not follow allocation, which would reach the scheduler ten
    seconds late: see `health.py`."""
    marked = set(itertools.islice(unhealthy, _MOST_UNHEALTHY))
    health = {True: "Unhealthy", False: "Healthy"}
    return ListAndWatchResponse(
        devices=[Device(ID=name, health=health[name in marked]) for name in map(str, range(count))]
    )
