"""Tests of `kubectl remotegpu` with a real operator and API server. Fake appliances report the state of leases."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.apiserver import ApiServer
from support.kubelab import CLAIMS, MIB, POOLS, Kube, Object, claim, gated_pod, node, operator, pool
from support.kubenodes import Appliance, Nodes
from support.system import REMOTEGPU, until
from support.watching import watching

from remotegpu.rpc import pb

pytestmark = pytest.mark.timeout(240)

SPACE = "team"
MINE = CLAIMS.format(SPACE)
PLUGIN = str(Path(REMOTEGPU).with_name("kubectl-remotegpu"))
COMPLETE = str(Path(REMOTEGPU).with_name("kubectl_complete-remotegpu"))
USAGE, BUSY = 2, 75


class Lab:
    def __init__(self, server: ApiServer, kube: Kube, nodes: Nodes) -> None:
        self.kube, self.nodes = kube, nodes
        self.environment = os.environ | {"KUBECONFIG": str(server.kubeconfig)}

    def __call__(self, *arguments: str, program: str = PLUGIN) -> subprocess.CompletedProcess[str]:
        command = [program, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=self.environment)

    def good(self, *arguments: str, program: str = PLUGIN) -> str:
        done = self(*arguments, program=program)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [PLUGIN, *arguments],
            text=True,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def runs(self, name: str) -> Object:
        until(lambda: self.stored(name).get("status", {}).get("phase") == "Allocated", 30, f"{name} has a share")
        return self.stored(name)

    def stored(self, name: str) -> Object:
        found: Object = self.kube.get(f"{MINE}/{name}")
        return found

    def place(self, name: str) -> str:
        (allocation,) = self.stored(name)["status"]["allocations"]
        return str(allocation["appliance"])

    def appliance(self, name: str) -> Appliance:
        return self.nodes.appliances[f"{name}-0"]


@pytest.fixture
def lab(server: ApiServer, kube: Kube, folder: Path) -> Iterator[Lab]:
    kube.namespace(SPACE)
    for name in ("node-a", "node-b"):
        kube("POST", "/api/v1/nodes", node(name, {"gpus": "yes"}))
    with Nodes(kube, subnet=31) as nodes, operator(server.kubeconfig, folder):
        kube("POST", POOLS, pool("default", software={"gpus": 1, "memory": 1024 * MIB}))
        until(
            lambda: (
                kube.get(f"{POOLS}/default").get("status", {}).get("phase") == "Ready" and len(nodes.appliances) == 2
            ),
            30,
            "the pool is ready",
        )
        yield Lab(server, kube, nodes)


def test_ls_watch_shows_a_claim_that_comes(lab: Lab) -> None:
    with watching(PLUGIN, "ls", "-n", SPACE, "--watch", env=lab.environment) as shown:
        until(lambda: "no claims\n" in shown, 30, "the first listing")
        lab.kube("POST", MINE, claim("mine", "default", fraction="0.25"))
        until(lambda: any("mine" in line and "Allocated" in line for line in list(shown)), 30, "the claim")


def test_an_appliance_is_drained(lab: Lab) -> None:
    lab.kube("POST", MINE, claim("mine", "default", fraction="0.25"))
    lab.runs("mine")
    here = lab.place("mine")
    assert "gets no new claims" in lab.good("cordon", here)
    until(lambda: "Draining" in lab.good("ls"), 30, "the operator has seen it")
    lab.kube("POST", MINE, claim("other", "default", fraction="0.25"))
    lab.runs("other")
    there = lab.place("other")
    assert (lab.place("mine"), there == here) == (here, False)
    draining = lab.start("drain", here)
    assert draining.stdout is not None
    lines = [draining.stdout.readline() for _ in range(2)]
    assert f"{SPACE}/mine: is not movable" in lines[1]
    lab.appliance(here).on_move = lambda _: ""
    lab.kube.merge(f"{MINE}/mine", {"spec": {"movable": True}})
    output, errors = draining.communicate(timeout=60)
    assert (draining.returncode, f"no claim is on {here}" in output) == (0, True), errors
    assert lab.place("mine") == there
    assert "gets new claims again" in lab.good("uncordon", here)
    until(lambda: "Draining" not in lab.good("ls"), 30, "the operator has seen it")
    assert lab("cordon", "nowhere").returncode == USAGE


def test_a_person_sees_and_changes_claims(lab: Lab) -> None:
    lab.kube("POST", MINE, claim("mine", "default", fraction="0.75"))
    stored = lab.runs("mine")
    here = lab.place("mine")
    (there,) = {name.removesuffix("-0") for name in lab.nodes.appliances} - {here}

    what_there_is(lab, here, there)
    it_is_suspended_and_resumed(lab, stored)
    it_is_moved(lab, here, there)
    what_happened(lab, there)
    mistakes(lab)
    names_are_completed(lab, here, there)


def what_there_is(lab: Lab, here: str, there: str) -> None:
    def lines() -> dict[str, str]:
        return {line.split()[0]: line for line in lab.good("ls", "-n", SPACE).splitlines() if line}

    # The operator writes the pool's status from time to time.
    until(lambda: " 0.25 " in lines()[here], 30, "three quarters are taken")
    found = lines()
    assert "1 x " in found[there] and "Ready" in found[there]
    assert "Allocated" in found["mine"] and here in found["mine"]
    assert f"{SPACE}/mine" in lab.good("ls", "-A")
    assert "no claims" in lab.good("ls", "-n", "default")


def it_is_suspended_and_resumed(lab: Lab, stored: Object) -> None:
    appliance = lab.appliance(lab.place("mine"))
    suspending = lab.start("suspend", "mine", "--claim", "-n", SPACE)
    until(lambda: lab.stored("mine")["status"]["reason"] == "Suspending", 30, "it is asked to be suspended")
    # The command waits for the appliance's report.
    assert suspending.poll() is None
    (allocation,) = stored["status"]["allocations"]
    lease = pb.Lease(claim_uid=stored["metadata"]["uid"], suspended="by a test")
    lease.places.append(pb.Place(gpu=allocation["gpu"], leased_bytes=MIB))
    appliance.leases = [lease]
    output, errors = suspending.communicate(timeout=60)
    assert (suspending.returncode, "is suspended" in output) == (0, True), errors
    assert lab.stored("mine")["status"]["phase"] == "Suspended"
    appliance.leases = []
    assert "has its GPU" in lab.good("resume", "mine", "--claim", "-n", SPACE)
    assert lab.runs("mine")["spec"]["suspend"] is False


def it_is_moved(lab: Lab, here: str, there: str) -> None:
    refusals = ["Textures: it has 2 arrays"]
    lab.appliance(here).on_move = lambda _: refusals.pop() if refusals else ""
    refused = lab("migrate", "mine", "--claim", "--to", there, "-n", SPACE)
    assert (refused.returncode, lab.place("mine")) == (BUSY, here)
    assert "Textures: it has 2 arrays" in refused.stderr
    assert f"is on {there}" in wait_for_move(lab, there)
    assert lab.place("mine") == there


def wait_for_move(lab: Lab, there: str) -> str:
    """Moves the claim and returns the command's output, after the status has lost the reason of the last attempt."""
    until(lambda: lab.stored("mine")["status"]["reason"] != "NotMoved", 40, "it is tried again")
    return lab.good("migrate", "mine", "--claim", "--to", there, "-n", SPACE)


def what_happened(lab: Lab, there: str) -> None:
    told = lab.good("describe", "mine", "--claim", "-n", SPACE)
    assert f"on {there}" in told and f"to be on {there}" in told
    assert "NotMoved" in told and "Textures" in told  # in an Event


def mistakes(lab: Lab) -> None:
    for arguments, told in (
        (("migrate", "mine", "--claim", "--to", "nowhere", "-n", SPACE), "no pool has an appliance 'nowhere'"),
        (("suspend", "nobody", "--claim", "-n", SPACE), "not found"),
        (("why", "nobody", "-n", SPACE), "not found"),
        (("suspend",), "kubectl remotegpu --help"),
    ):
        done = lab(*arguments)
        assert (done.returncode, told in done.stderr, done.stderr.count("\n")) == (USAGE, True, 1), done.stderr


def names_are_completed(lab: Lab, here: str, there: str) -> None:
    lab.kube("POST", f"/api/v1/namespaces/{SPACE}/pods", gated_pod("trainer", "default", 100))
    until(lambda: len(lab.kube.get(MINE)["items"]) == 2, 30, "its claim is made")

    def offered(*arguments: str) -> list[str]:
        *found, directive = lab.good(*arguments, program=COMPLETE).splitlines()
        assert directive == ":4"
        return found

    assert offered("su") == ["suspend"]
    assert offered("why", "-n", SPACE, "") == ["trainer"]
    assert offered("suspend", "--claim", "-n", SPACE, "mi") == ["mine"]
    assert sorted(offered("migrate", "mine", "--to", "")) == sorted([here, there])
    assert f"{SPACE}/trainer" in lab.good("why", "trainer", "-n", SPACE)
    words = {"COMP_WORDS": f"remotegpu why -n {SPACE} tr", "COMP_CWORD": "4", "_REMOTEGPU_COMPLETE": "complete_bash"}
    assert subprocess.check_output([REMOTEGPU], env=lab.environment | words, text=True, timeout=60) == "trainer\n"
