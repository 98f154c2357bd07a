"""A cluster at work, and parts of it that die, stop or vanish."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

from cluster.lifecycle import part
from support import processes
from support.checker import SYSTEM
from support.installation import Installation
from support.kubectl import Object
from support.manifests import pod, program
from support.namespace import Namespace
from support.system import until

from remotegpu.api.kubernetes import APPLIANCE_LABEL


@dataclass(frozen=True, slots=True)
class Tenant:
    """A pod that computes on one appliance until it is told to end."""

    namespace: Namespace
    pod: str
    claim: str
    appliance: str

    def rounds(self) -> int:
        return self.namespace.logs(self.pod).count("round ")

    def goes_on(self, seconds: float = 60) -> None:
        """It computes still: two rounds more than now."""
        now = self.rounds()
        until(lambda: self.rounds() >= now + 2, seconds, f"{self.pod} continues to compute")

    def phase_of_claim(self) -> tuple[str, str]:
        found = self.namespace.get("gpuclaim", self.claim)
        return (found["status"]["phase"], found["status"]["reason"]) if found else ("Gone", "")

    def ends_well(self) -> None:
        """Told to end, it has computed right all the time."""
        self.namespace("exec", self.pod, "--", "sh", "-c", "kill -TERM 1")
        self.namespace.wait_for_phase(self.pod, "Succeeded", seconds=30)
        assert self.namespace.logs(self.pod).splitlines()[-1].startswith("ok ")

    def fails(self, seconds: float) -> float:
        """After how many seconds its program had an error."""
        begun = time.monotonic()
        self.namespace.wait_for_line(self.pod, "CUDA error", seconds)
        heard = time.monotonic() - begun
        self.namespace.wait_for_phase(self.pod, "Failed")
        return heard


def tenants(namespace: Namespace, installation: Installation, fraction: str = "0.6") -> list[Tenant]:
    """One on each appliance: two of them do not fit on one GPU."""
    names = [f"tenant-{number}" for number in range(len(installation.appliances()))]
    namespace.create(*(pod(name, program("hold.py"), fraction=fraction) for name in names))
    found = []
    for name in names:
        claim = namespace.wait_for_claim(name, "Allocated")
        place = claim["status"]["allocations"][0]["appliance"]
        found.append(Tenant(namespace, name, claim["metadata"]["name"], place))
    for each in found:
        namespace.wait_for_line(each.pod, "round 2")
    assert len({each.appliance for each in found}) == len(found)
    return found


@contextlib.contextmanager
def cut_off(installation: Installation, appliance: Object) -> Iterator[None]:
    """The pod's network is down for the time of the block, as when its machine loses power: nobody is told. Then the
    pod is replaced, as when the machine is back."""
    inside = processes.main_process(appliance).pid
    subprocess.run(["nsenter", f"--net=/proc/{inside}/ns/net", "ip", "link", "set", "eth0", "down"], check=True)
    try:
        yield
    finally:
        installation.kubectl("delete", "pod", "-n", SYSTEM, appliance["metadata"]["name"], "--now")


def appliance_of(installation: Installation, tenant: Tenant) -> Object:
    found = installation.appliance(tenant.appliance)
    assert found, f"appliance {tenant.appliance} has no pod"
    assert found["metadata"]["labels"][APPLIANCE_LABEL] == tenant.appliance
    return found


@contextlib.contextmanager
def paused(name: str) -> Iterator[None]:
    """A program of the cluster is held by SIGSTOP for the time of the block."""
    part(name).pause()
    try:
        yield
    finally:
        part(name).resume()


@contextlib.contextmanager
def killed(name: str) -> Iterator[None]:
    """A program of the cluster does not run for the time of the block."""
    part(name).kill()
    try:
        yield
    finally:
        part(name).start()


def pod_killed(installation: Installation, victim: Object) -> None:
    """SIGKILL to all of a pod's processes; returns when kubelet has started its containers again."""
    before = processes.restarts(installation.kubectl, victim)
    processes.kill(victim)
    until(
        lambda: processes.restarts(installation.kubectl, victim) > before,
        60,
        f"{victim['metadata']['name']} has been started again",
    )
