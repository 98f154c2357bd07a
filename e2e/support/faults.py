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
    """A pod that computes on one appliance until it is stopped."""

    namespace: Namespace
    pod: str
    claim: str
    appliance: str

    def rounds(self) -> int:
        return self.namespace.logs(self.pod).count("round ")

    def goes_on(self, seconds: float = 60) -> None:
        """Waits until it has computed two more rounds."""
        now = self.rounds()
        until(lambda: self.rounds() >= now + 2, seconds, f"{self.pod} continues to compute")

    def phase_of_claim(self) -> tuple[str, str]:
        found = self.namespace.get("gpuclaim", self.claim)
        return (found["status"]["phase"], found["status"]["reason"]) if found else ("Gone", "")

    def ends_well(self) -> None:
        """Stops the program, and checks that it computed correctly all the time."""
        self.namespace("exec", self.pod, "--", "sh", "-c", "kill -TERM 1")
        self.namespace.wait_for_phase(self.pod, "Succeeded", seconds=30)
        assert self.namespace.logs(self.pod).splitlines()[-1].startswith("ok ")

    def fails(self, seconds: float) -> float:
        """Waits until the program reports an error; returns after how many seconds."""
        begun = time.monotonic()
        self.namespace.wait_for_line(self.pod, "CUDA error", seconds)
        heard = time.monotonic() - begun
        self.namespace.wait_for_phase(self.pod, "Failed")
        return heard


def tenants(namespace: Namespace, installation: Installation, fraction: str = "0.6") -> list[Tenant]:
    """Starts one tenant on each appliance: two of them do not fit on one GPU."""
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
    """Takes the pod's network down inside the block, as if its machine lost power: no peer is notified.

    Then the pod is replaced, as if the machine were back.
    """
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
    """Stops a program of the cluster with SIGSTOP inside the block."""
    part(name).pause()
    try:
        yield
    finally:
        part(name).resume()


@contextlib.contextmanager
def killed(name: str) -> Iterator[None]:
    """Kills a program of the cluster, which stays down inside the block."""
    part(name).kill()
    try:
        yield
    finally:
        part(name).start()


def pod_killed(installation: Installation, victim: Object) -> None:
    """Sends SIGKILL to all of a pod's processes; returns when kubelet has started its containers again."""
    before = processes.restarts(installation.kubectl, victim)
    processes.kill(victim)
    until(
        lambda: processes.restarts(installation.kubectl, victim) > before,
        60,
        f"{victim['metadata']['name']} has been started again",
    )
