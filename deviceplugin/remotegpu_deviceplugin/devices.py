"""The number of devices of a resource that a node offers, in the form that the kubelet expects."""

import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from remotegpu.api.modes import Backend
from remotegpu_deviceplugin._generated.deviceplugin_pb2 import Device, ListAndWatchResponse

# gRPC's limit of 4 MiB. The kubelet drops a larger message without an error, and keeps the old number of devices.
MESSAGE_LIMIT: Final = 4 << 20
# The size of a device in the message: an id of up to six digits, "Healthy", and protobuf's tags and lengths.
_DEVICE_BYTES: Final = 19
# The most devices to mark as unhealthy: "Unhealthy" takes two bytes more than "Healthy".
_MOST_UNHEALTHY: Final = 1 << 15
MOST_DEVICES: Final = (MESSAGE_LIMIT - 2 * _MOST_UNHEALTHY) // _DEVICE_BYTES

# Devices of `remotegpu/client` on each node: more than a node has pods.
CLIENTS: Final = 1000
# Devices for the local sockets of appliances on each node: more than a node has appliances, also during replacement.
APPLIANCES: Final = 100


@dataclass(frozen=True, slots=True)
class Pools:
    """The sums over all pools that a node needs."""

    # All GPUs of the pools, in thousandths of a GPU.
    milli: int
    # True if every GPU is a software GPU, which executes PTX and no machine code.
    software: bool

    @classmethod
    def from_objects(cls, pools: Iterable[dict[str, Any]]) -> "Pools":
        found = list(pools)
        return cls(
            milli=sum(pool.get("status", {}).get("total", {}).get("milli", 0) for pool in found),
            software=all(pool["spec"].get("backend", Backend.SOFTWARE) == Backend.SOFTWARE for pool in found),
        )

    def since(self, before: "Pools | None") -> "Pools":
        """Returns the figures to advertise after `before`, with a `milli` that never shrinks.

        A pod may hold any device id. A kubelet that restarts rejects a pod whose ids are no longer advertised. A
        `milli` that is too large does no harm.
        """
        return self if before is None else replace(self, milli=max(self.milli, before.milli))

    @property
    def wanted(self) -> int:
        """The number of `remotegpu/milli` to advertise on every node: twice the sum of all pools.

        The operator enforces the real sum. The share of a terminating pod may already belong to another pod, while the
        scheduler still counts both pods. With the exact sum the scheduler would preempt one of them.
        """
        return 2 * self.milli


def fitting(wanted: int) -> int:
    return min(wanted, MOST_DEVICES)


def listing(count: int, unhealthy: Collection[str] = ()) -> ListAndWatchResponse:
    """Builds the list of devices for the kubelet, with the ids "0" to `count` - 1.

    `unhealthy` are ids of devices whose GPU failed (see `health.py`). Health does not show which devices are allocated:
    the scheduler would see that ten seconds late.
    """
    marked = set(itertools.islice(unhealthy, _MOST_UNHEALTHY))
    health = {True: "Unhealthy", False: "Healthy"}
    return ListAndWatchResponse(
        devices=[Device(ID=name, health=health[name in marked]) for name in map(str, range(count))]
    )
