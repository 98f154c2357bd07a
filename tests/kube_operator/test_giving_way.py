"""Tests of claims that are suspended by a schedule or for a claim of higher priority.

A fake appliance suspends the claims whose status asks for it.
"""

from __future__ import annotations

import contextlib
import datetime
import threading
import time
import zoneinfo
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import urllib3
from support.apiserver import ApiServer
from support.kubelab import CLAIMS, MIB, POOLS, Kube, Object, RefusedError, claim, node, operator, pool
from support.kubenodes import Appliance, Nodes
from support.shifted_clock import ShiftedClock
from support.system import until

from remotegpu.rpc import pb

BERLIN: Final = zoneinfo.ZoneInfo("Europe/Berlin")
KEPT = 2 * MIB


def status(thing: Object) -> Object:
    found: Object = thing.get("status") or {}
    return found


class Obedient:
    """Makes the fake appliance report a claim as suspended as soon as the claim's status asks for the suspension."""

    def __init__(self, kube: Kube, appliance: Appliance, namespaces: list[str]) -> None:
        self._kube, self._appliance, self._namespaces = kube, appliance, namespaces
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Obedient:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.1):
            with contextlib.suppress(RefusedError, urllib3.exceptions.HTTPError):
                found = [each for name in self._namespaces for each in self._kube.items(CLAIMS.format(name))]
                self._appliance.leases = [self._lease(each) for each in found if self._gives_way(each)]

    @staticmethod
    def _gives_way(stored: Object) -> bool:
        return status(stored).get("reason") == "Suspending" or status(stored).get("phase") == "Suspended"

    @staticmethod
    def _lease(stored: Object) -> pb.Lease:
        places = [pb.Place(gpu=each["gpu"], leased_bytes=KEPT) for each in status(stored)["allocations"]]
        return pb.Lease(claim_uid=stored["metadata"]["uid"], suspended="by a test", places=places)


@contextlib.contextmanager
def cluster(
    server: ApiServer, kube: Kube, folder: Path, namespaces: list[str], spec: dict[str, Any], **environment: str
) -> Iterator[None]:
    """Runs a pool with one GPU of 1 GiB, an operator, and a fake appliance that suspends claims at once."""
    for name in namespaces:
        kube.namespace(name)
    kube("POST", "/api/v1/nodes", node("node-a", {"gpus": "yes"}))
    with Nodes(kube, subnet=13) as nodes, operator(server.kubeconfig, folder, **environment):
        kube("POST", POOLS, pool("default", software={"gpus": 1, "memory": 1024 * MIB}, **spec))
        until(lambda: status(kube.get(f"{POOLS}/default")).get("phase") == "Ready", 30, "the pool is ready")
        (appliance,) = nodes.appliances.values()
        with Obedient(kube, appliance, namespaces):
            yield


def make(
    kube: Kube, namespace: str, name: str, fraction: str, labels: dict[str, str] | None = None, **spec: Any
) -> None:
    body = claim(name, "default", fraction=fraction, **spec)
    body["metadata"].update(namespace=namespace, labels=labels or {})
    kube("POST", CLAIMS.format(namespace), body)


def state(kube: Kube, namespace: str, name: str) -> tuple[str, str]:
    found = status(kube.get(f"{CLAIMS.format(namespace)}/{name}"))
    return found.get("phase", ""), found.get("reason", "")


def becomes(kube: Kube, namespace: str, name: str, *wanted: tuple[str, str]) -> None:
    until(lambda: state(kube, namespace, name) in wanted, 20, f"{namespace}/{name} is {wanted}")


ALLOCATED, BY_SCHEDULE, FOR_PRIORITY = (
    ("Allocated", "Allocated"),
    ("Suspended", "BySchedule"),
    ("Suspended", "ForPriority"),
)


def test_desks_by_day_and_training_by_night_for_three_days(server: ApiServer, kube: Kube, folder: Path) -> None:
    clock = ShiftedClock(folder / "clock")
    # The first day is later than today: certificates that were created today are not valid yet for an earlier clock.
    first = datetime.datetime.now(BERLIN).date() + datetime.timedelta(days=2)

    def it_is(day: int, hour: int) -> None:
        """Sets the operator's clock to an hour of the day in Berlin."""
        wanted = datetime.datetime.combine(first + datetime.timedelta(days=day), datetime.time(hour), BERLIN)
        clock.jump(int(wanted.timestamp() - time.time()))

    it_is(0, 13)
    window = {"timeZone": BERLIN.key}
    schedules = [
        {"name": "night", "from": "20:00", "to": "06:00", "namespaces": ["desks"], **window},
        {"name": "day", "from": "06:00", "to": "20:00", "matchLabels": {"app": "model"}, **window},
    ]
    with cluster(server, kube, folder, ["desks", "training"], {"schedules": schedules}, **clock.environment):
        for name in ("ann", "bob"):
            # Less than a half: the driver keeps some memory of suspended claims.
            make(kube, "desks", name, "0.49", suspendable=True)
            becomes(kube, "desks", name, ALLOCATED)
        make(kube, "training", "model", "0.9", labels={"app": "model"}, suspendable=True)
        becomes(kube, "training", "model", ("Pending", "WaitingForCapacity"))
        for day in range(3):
            it_is(day, 20)
            for name in ("ann", "bob"):
                becomes(kube, "desks", name, BY_SCHEDULE)
            becomes(kube, "training", "model", ALLOCATED)
            it_is(day + 1, 5)
            assert state(kube, "desks", "ann") == BY_SCHEDULE
            it_is(day + 1, 6)
            becomes(kube, "training", "model", BY_SCHEDULE)
            for name in ("ann", "bob"):
                becomes(kube, "desks", name, ALLOCATED)


def test_a_claim_of_higher_priority_gets_the_share_of_a_suspendable_one(
    server: ApiServer, kube: Kube, folder: Path
) -> None:
    with cluster(server, kube, folder, ["team"], {"suspendForPriority": True}):
        make(kube, "team", "firm", "0.25", priority=-5)
        becomes(kube, "team", "firm", ALLOCATED)
        make(kube, "team", "low", "0.7", suspendable=True)
        becomes(kube, "team", "low", ALLOCATED)
        # A claim of equal priority waits.
        make(kube, "team", "equal", "0.3")
        becomes(kube, "team", "equal", ("Pending", "WaitingForCapacity"))
        make(kube, "team", "high", "0.4", priority=100)
        becomes(kube, "team", "low", FOR_PRIORITY)
        becomes(kube, "team", "high", ALLOCATED)
        assert state(kube, "team", "firm") == ALLOCATED
        kube("DELETE", f"{CLAIMS.format('team')}/equal")
        kube("DELETE", f"{CLAIMS.format('team')}/high")
        becomes(kube, "team", "low", ALLOCATED)


def test_nobody_gives_way_where_the_pool_does_not_say_so(server: ApiServer, kube: Kube, folder: Path) -> None:
    with cluster(server, kube, folder, ["team"], {}):
        make(kube, "team", "low", "0.7", suspendable=True)
        becomes(kube, "team", "low", ALLOCATED)
        make(kube, "team", "high", "0.4", priority=100)
        becomes(kube, "team", "high", ("Pending", "WaitingForCapacity"))
        assert state(kube, "team", "low") == ALLOCATED
        kube.merge(f"{POOLS}/default", {"spec": {"suspendForPriority": True}})
        becomes(kube, "team", "low", FOR_PRIORITY)
        becomes(kube, "team", "high", ALLOCATED)


def test_a_time_zone_that_is_not_there_is_said(server: ApiServer, kube: Kube, folder: Path) -> None:
    schedule = {"name": "always", "from": "00:00", "to": "00:00", "timeZone": "Europe/Atlantis"}
    with cluster(server, kube, folder, ["team"], {"schedules": [schedule]}):

        def condition() -> Object:
            found = status(kube.get(f"{POOLS}/default")).get("conditions", [])
            return next((each for each in found if each["type"] == "SchedulesUnderstood"), {})

        until(lambda: condition().get("status") == "False", 10, "the condition is there")
        assert "Europe/Atlantis" in condition()["message"]
        make(kube, "team", "one", "0.5", suspendable=True)
        becomes(kube, "team", "one", ALLOCATED)
