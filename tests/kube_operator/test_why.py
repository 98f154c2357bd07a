"""Tests of `remotegpu why` with a real operator: an action has the effect that the command predicted."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.apiserver import ApiServer
from support.kubelab import CLAIMS, MIB, POOLS, Kube, Object, claim, gated_pod, node, operator, pool
from support.kubenodes import Nodes
from support.system import REMOTEGPU, until

from remotegpu.api.waiting import Answer
from remotegpu.cli.cluster.objects import Cluster
from remotegpu.cli.cluster.why import of_claim, of_pod

SPACE = "why"


class Lab:
    def __init__(self, server: ApiServer, kube: Kube) -> None:
        self.server, self.kube = server, kube
        self.cluster = Cluster(Path(server.kubeconfig))

    def make(self, name: str, namespace: str = SPACE, **share: Any) -> None:
        self.kube("POST", CLAIMS.format(namespace), claim(name, "default", **share))

    def delete(self, name: str) -> None:
        self.kube("DELETE", f"{CLAIMS.format(SPACE)}/{name}")

    def becomes(self, name: str, phase: str, reason: str, namespace: str = SPACE) -> None:
        def status() -> Object:
            found: Object = self.kube.get(f"{CLAIMS.format(namespace)}/{name}").get("status") or {}
            return found

        until(lambda: (status().get("phase"), status().get("reason")) == (phase, reason), 20, f"{name} is {reason}")

    def waits(self, name: str, namespace: str = SPACE) -> None:
        self.becomes(name, "Pending", "WaitingForCapacity", namespace)

    def runs(self, name: str, namespace: str = SPACE) -> None:
        self.becomes(name, "Allocated", "Allocated", namespace)

    def command(self, name: str, *more: str) -> subprocess.CompletedProcess[str]:
        command = [REMOTEGPU, "why", name, "-n", SPACE, "--kubeconfig", str(self.server.kubeconfig), *more]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def why(self, name: str, namespace: str = SPACE) -> Answer:
        return of_claim(self.cluster, namespace, name)


@pytest.mark.timeout(300)
def test_what_it_says_would_happen_happens(server: ApiServer, kube: Kube, folder: Path) -> None:
    lab = Lab(server, kube)
    kube.namespace(SPACE)
    kube("POST", "/api/v1/nodes", node("node-a", {"gpus": "yes"}))
    with Nodes(kube, subnet=29), operator(server.kubeconfig, folder):
        kube("POST", POOLS, pool("default", software={"gpus": 2, "memory": 1024 * MIB}))
        until(lambda: kube.get(f"{POOLS}/default").get("status", {}).get("phase") == "Ready", 30, "the pool is ready")
        for name, fraction in (("first", "0.75"), ("second", "0.5")):
            lab.make(name, fraction=fraction)
            lab.runs(name)
        for name, fraction in (("large", "0.75"), ("small", "0.5")):
            lab.make(name, fraction=fraction)
            lab.waits(name)

        it_runs(lab)
        the_queue(lab)
        whose_end_makes_room(lab)
        a_smaller_share(lab)
        what_no_end_helps(lab)
        a_quota(lab)
        a_pod(lab)


def it_runs(lab: Lab) -> None:
    answer = lab.why("first")
    assert (answer.phase, answer.position, answer.holders, answer.smaller) == ("Allocated", 0, (), ())


def the_queue(lab: Lab) -> None:
    large, small = lab.why("large"), lab.why("small")
    assert (large.position, large.ahead) == (1, ())
    # Half of a GPU is free, but the earlier claim has reserved it.
    assert (small.position, small.ahead) == (2, (f"{SPACE}/large",))
    told = lab.command("small", "--claim").stdout
    assert f"place 2 of pool default, behind {SPACE}/large" in told


def whose_end_makes_room(lab: Lab) -> None:
    answer = lab.why("large")
    (holder,) = answer.holders
    assert holder.claim in (f"{SPACE}/first", f"{SPACE}/second")
    assert answer.starts_in_seconds == holder.ends_in_seconds
    lab.delete(holder.claim.partition("/")[2])
    lab.runs("large")


def a_smaller_share(lab: Lab) -> None:
    lab.delete("small")
    lab.make("whole", fraction="1")
    lab.waits("whole")
    (share,) = lab.why("whole").smaller
    lab.delete("whole")
    lab.make("more", fraction=f"{float(share) + 0.001:.3f}")
    lab.waits("more")
    lab.delete("more")
    lab.make("as-said", fraction=share)
    lab.runs("as-said")
    lab.delete("as-said")


def what_no_end_helps(lab: Lab) -> None:
    lab.make("huge", memory="2Gi")
    lab.becomes("huge", "Pending", "TooLarge")
    answer = lab.why("huge")
    assert (answer.reason, answer.holders, answer.starts_in_seconds) == ("TooLarge", (), None)
    assert "is more than pool default ever has" in answer.message
    (share,) = answer.smaller
    lab.delete("huge")
    lab.make("as-said", memory=share)
    lab.runs("as-said")
    lab.delete("as-said")


def a_quota(lab: Lab) -> None:
    lab.kube.namespace("why-quota")
    body = {"metadata": {"name": "gpus"}, "spec": {"hard": {"requests.remotegpu/milli": "30"}}}
    lab.kube("POST", "/api/v1/namespaces/why-quota/resourcequotas", body)
    lab.make("one", "why-quota", fraction="0.02")
    lab.runs("one", "why-quota")
    lab.make("two", "why-quota", fraction="0.02")
    lab.becomes("two", "Pending", "QuotaExceeded", "why-quota")
    answer = lab.why("two", "why-quota")
    assert [each.claim for each in answer.holders] == ["why-quota/one"]
    assert answer.smaller == ("0.01",)
    assert "gpus" in answer.message


def a_pod(lab: Lab) -> None:
    pods = f"/api/v1/namespaces/{SPACE}/pods"
    lab.kube("POST", pods, gated_pod("train", "default", 1000))
    claims = CLAIMS.format(SPACE)
    until(
        lambda: any(each["metadata"]["name"].startswith("train-") for each in lab.kube.items(claims)), 20, "its claim"
    )
    until(lambda: isinstance(of_pod(lab.cluster, SPACE, "train"), Answer), 20, "it is found by its pod")
    done = lab.command("train", "--json")
    assert json.loads(done.stdout)["position"] >= 1, done.stderr
    container = {"name": "main", "image": "none"}
    lab.kube("POST", pods, {"metadata": {"name": "plain"}, "spec": {"containers": [container]}})
    told = of_pod(lab.cluster, SPACE, "plain")
    assert isinstance(told, str) and "asks for no share of a GPU" in told
    more: list[tuple[str, ...]] = [(), ("--claim",)]
    for options in more:
        done = lab.command("nobody", *options)
        assert (done.returncode != 0, done.stderr.count("\n"), done.stdout) == (True, 1, "")
