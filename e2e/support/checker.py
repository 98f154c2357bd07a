"""Checks that the appliances' own counts agree with the claims. Shares no code with the operator's allocation.

Each appliance is read through a forwarded port of its own pod, so that no policy and no Service lies between.
"""

from __future__ import annotations

import base64
import contextlib
import re
import subprocess
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from support.kubectl import Kubectl, Object
from support.system import until

from remotegpu.api.failures import ApplianceError, Failure
from remotegpu.api.kubernetes import (
    APPLIANCE_LABEL,
    CLAIMS,
    COMPONENT_LABEL,
    CONTROL_PORT,
    HTTP_PORT,
    appliance_audience,
    server_name,
)
from remotegpu.rpc import pb
from remotegpu.rpc.client import Access, ApplianceClient, parse_endpoint

SYSTEM: Final = "remotegpu-system"
OPERATOR: Final = "remotegpu-operator"


@dataclass(frozen=True, slots=True)
class Held:
    """A lease as an appliance counts it: a claim's memory on one GPU."""

    appliance: str
    gpu: str
    claim_uid: str
    memory: int


@dataclass(frozen=True, slots=True)
class Truth:
    """One appliance's own account of its GPUs, leases and sessions."""

    appliance: str
    shareable: dict[str, int]
    leased: dict[str, int]
    held: tuple[Held, ...]
    sessions: dict[str, int]
    draining: bool


def truth_of(reply: pb.InventoryReply, appliance: str) -> Truth:
    uuids = {gpu.index: gpu.uuid for gpu in reply.gpus}
    return Truth(
        appliance=appliance,
        shareable={gpu.uuid: gpu.shareable_bytes for gpu in reply.gpus},
        leased={gpu.uuid: gpu.leased_bytes for gpu in reply.gpus},
        held=tuple(
            Held(appliance, uuids[index], lease.claim_uid, lease.memory_bytes)
            for lease in reply.leases
            for index in lease.gpus
        ),
        sessions={lease.claim_uid: lease.sessions for lease in reply.leases},
        draining=reply.draining,
    )


def over_capacity(truths: Sequence[Truth]) -> list[str]:
    """Checks that no GPU has given away more than it has, which holds at every moment. Returns the violations."""
    wrong = []
    for truth in truths:
        given: Counter[str] = Counter()
        for held in truth.held:
            given[held.gpu] += held.memory
        for gpu, most in truth.shareable.items():
            if given[gpu] > most:
                wrong.append(f"{truth.appliance}: {given[gpu]} of {most} bytes of {gpu} are given away")
            if given[gpu] != truth.leased[gpu]:
                wrong.append(f"{truth.appliance}: leases of {gpu} add up to {given[gpu]}, it says {truth.leased[gpu]}")
    return wrong


def disagreements(truths: Sequence[Truth], claims: Sequence[Object], pods: Sequence[Object]) -> list[str]:
    """Checks the settled state; returns the differences.

    Each lease has its allocated claim and each claim its lease, and a pod's claim has a pod that still needs it.
    """
    present = {truth.appliance for truth in truths}
    live = {pod["metadata"]["uid"] for pod in pods if needs_share(pod)}
    promised: set[Held] = set()
    wrong = []
    for claim in claims:
        name = f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
        status = claim.get("status", {})
        owner = claim["spec"].get("pod", {})
        if owner and owner["uid"] not in live:
            wrong.append(f"claim {name} is {status.get('phase')}, but its pod has ended")
        if status.get("phase") != "Allocated":
            continue
        for place in status["allocations"]:
            if place["appliance"] in present:
                promised.add(
                    Held(place["appliance"], place["gpu"], claim["metadata"]["uid"].replace("-", ""), place["memory"])
                )
            else:
                wrong.append(f"claim {name} has a GPU of {place['appliance']}, which does not answer")
    held = {
        Held(each.appliance, each.gpu, each.claim_uid.replace("-", ""), each.memory)
        for truth in truths
        for each in truth.held
    }
    wrong += [f"{each} has no allocated claim" for each in held - promised]
    wrong += [f"{each} is promised by a claim, the appliance does not know it" for each in promised - held]
    return sorted(wrong)


def needs_share(pod: Object) -> bool:
    """Whether the pod needs its share: also a deleted pod, until its containers have ended, but not one never bound."""
    ended = pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}
    return not ended and (stays(pod) or bool(pod["spec"].get("nodeName")))


def stays(pod: Object) -> bool:
    return "deletionTimestamp" not in pod["metadata"]


class Checker:
    """Reads all appliances of the cluster with the operator's rights."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._kubectl = kubectl
        self._certificate = Path(tempfile.mkdtemp(prefix="remotegpu-e2e-")) / "ca.crt"

    def appliance_pods(self) -> list[Object]:
        """Returns the pods of appliances that serve: ready, and not about to end."""
        pods = self._kubectl.all("pods", SYSTEM, {COMPONENT_LABEL: "appliance"})
        return [pod for pod in pods if needs_share(pod) and stays(pod) and ready(pod)]

    def inventory(self, pod: Object) -> pb.InventoryReply:
        """An appliance's answer to the operator."""
        appliance = pod["metadata"]["labels"][APPLIANCE_LABEL]
        token = self._kubectl(
            "create", "token", OPERATOR, "-n", SYSTEM, "--audience", appliance_audience(appliance)
        ).strip()
        self._certificate.write_text(self.authority())
        with self.forwarded(pod["metadata"]["name"], CONTROL_PORT) as port:
            access = Access(token=token, ca=self._certificate, server_name=server_name(appliance))
            client = ApplianceClient(parse_endpoint(f"127.0.0.1:{port}"), access)
            with contextlib.closing(client):
                return client.inventory()

    def metrics(self, pod: Object) -> dict[str, float]:
        """An appliance's own figures, without comments: `name{labels}` -> value."""
        with (
            self.forwarded(pod["metadata"]["name"], HTTP_PORT) as port,
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer,
        ):
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, value in (at.rsplit(" ", 1) for at in lines if not at.startswith("#"))}

    def authority(self) -> str:
        """The certificates that clients trust, as the operator publishes them to pods."""
        found = self._kubectl.get("secret", "remotegpu-ca", SYSTEM)
        assert found, "there is no Secret remotegpu-ca"
        return base64.b64decode(found["data"]["bundle.crt"]).decode()

    def truths(self) -> list[Truth]:
        return [
            truth_of(self.inventory(pod), pod["metadata"]["labels"][APPLIANCE_LABEL]) for pod in self.appliance_pods()
        ]

    def sample(self) -> list[str]:
        """Returns double allocations at this moment."""
        with contextlib.suppress(ApplianceError):
            return over_capacity(self.truths())
        return []

    def wrong(self) -> list[str]:
        try:
            truths = self.truths()
        except ApplianceError as error:
            return [f"an appliance does not answer: {error}"]
        claims = self._kubectl.all(CLAIMS)
        pods = self._kubectl.all("pods", selector={"status.remotegpu.io/pod": "true"})
        return over_capacity(truths) + disagreements(truths, claims, pods)

    def settled(self, seconds: float = 60) -> None:
        """Fails unless claims and appliances agree within `seconds`; fails at once on a double allocation."""
        last: list[str] = []

        def agreed() -> bool:
            nonlocal last
            last = self.wrong()
            assert not any("given away" in each for each in last), last
            return not last

        try:
            until(agreed, seconds, "claims and appliances agree")
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *last])) from None

    @contextlib.contextmanager
    def forwarded(self, pod: str, port: int) -> Iterator[int]:
        """A loopback port that ends inside the pod."""
        command = self._kubectl.command(
            "port-forward", "-n", SYSTEM, f"pod/{pod}", f":{port}", "--address", "127.0.0.1"
        )
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            found = re.search(r"127\.0\.0\.1:(\d+)", first)
            if not found:
                process.kill()
                raise ApplianceError(Failure.UNAVAILABLE, f"{pod}: {process.communicate()[1].strip()}")
            yield int(found[1])
        finally:
            process.kill()
            process.communicate()


def ready(pod: Object) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod.get("status", {}).get("conditions", []))
