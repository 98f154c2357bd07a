"""Desks have a GPU by day and a training has it by night, for three days in which no program ends."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

import pytest
import yaml
from support.kubectl import ROOT, Kubectl, Object
from support.namespace import Namespace
from support.system import until

from remotegpu.api.kubernetes import POOLS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

EXAMPLE = ROOT / "examples" / "11-day-and-night"
STEPS = 30
NOON, MIDNIGHT = 12, 0


def time_zone(hour: int) -> str:
    """Returns a time zone in which it is this hour of the day."""
    ahead = (hour - datetime.datetime.now(datetime.UTC).hour + 11) % 24 - 11
    # Signs are as POSIX has them.
    return f"Etc/GMT{-ahead:+d}" if ahead else "Etc/UTC"


class Clock:
    """The clock of a pool: its windows stay, and the time zone in which they are meant changes."""

    def __init__(self, kubectl: Kubectl, pool: Object) -> None:
        self._kubectl, self._pool = kubectl, pool

    def set(self, hour: int) -> None:
        for schedule in self._pool["spec"]["schedules"]:
            schedule["timeZone"] = time_zone(hour)
        self._kubectl.apply(self._pool)


@pytest.fixture
def clock(kubectl: Kubectl, nodes: list[str], namespace: Namespace) -> Iterator[Clock]:
    pool = yaml.safe_load((EXAMPLE / "pool.yaml").read_text())
    pool["spec"]["nodeSelector"]["kubernetes.io/hostname"] = nodes[0]
    name = pool["metadata"]["name"]
    clock = Clock(kubectl, pool)
    clock.set(NOON)
    until(lambda: ((kubectl.get(POOLS, name) or {}).get("status") or {}).get("phase") == "Ready", 90, "it is ready")
    steps = ROOT / "examples" / "04-sharing" / "steps.py"
    namespace("create", "configmap", "sharing", f"--from-file={steps}")
    yield clock
    namespace("delete", "job,pod", "--all", "--now", seconds=120)
    kubectl("delete", POOLS, name, seconds=120)


def begin(namespace: Namespace, name: str) -> None:
    """Starts the example's job, with as many steps as the test has time for."""
    job = yaml.safe_load((EXAMPLE / f"{name}.yaml").read_text())
    job["spec"]["template"]["spec"]["containers"][0]["command"][-1] = str(STEPS)
    namespace.create(job)


def reasons(namespace: Namespace, shift: str) -> list[str]:
    """Returns the reasons of this shift's claims, which carry their pods' labels."""
    claims = [each for each in namespace.claims() if each["metadata"].get("labels", {}).get("shift") == shift]
    return [str(each["status"]["reason"]) for each in claims]


def test_desks_by_day_and_training_by_night(namespace: Namespace, clock: Clock) -> None:
    def become(shift: str, wanted: list[str]) -> None:
        until(lambda: reasons(namespace, shift) == wanted, 90, f"the claims of {shift} are {wanted}")

    begin(namespace, "desks")
    become("day", ["Allocated"] * 2)
    begin(namespace, "training")
    become("night", ["WaitingForCapacity"])
    for _ in range(3):
        clock.set(MIDNIGHT)
        become("day", ["BySchedule"] * 2)
        become("night", ["Allocated"])
        clock.set(NOON)
        become("night", ["BySchedule"])
        become("day", ["Allocated"] * 2)
    finished = ("--for=condition=complete", "--timeout=120s")
    namespace("wait", "job/desks", *finished, seconds=130)
    assert reasons(namespace, "night") == ["BySchedule"]
    clock.set(MIDNIGHT)
    namespace("wait", "job/training", *finished, seconds=130)
    logs = [namespace.logs(each["metadata"]["name"]) for each in namespace.pods()]
    assert [f"{STEPS} steps, result right" in log for log in logs] == [True] * 3
    assert all("is suspended" in log for log in logs)
