"""To the release before this one and back, with claims: what its CRDs and Python make of ours, and ours of theirs."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.apiserver import ApiServer, api_server
from support.chart import CHART, NAMESPACE, Object, helm
from support.system import ROOT, until

from remotegpu.api.claims import Allocation, ClaimSpec, ClaimStatus, GPUClaim, Move, Phase, PodReference, Reason
from remotegpu.api.kubernetes import API_VERSION
from remotegpu.api.pools import GPUPool, IdleSpec, PoolSpec
from remotegpu.api.quantities import Ask

pytestmark = pytest.mark.timeout(400)

HERE, THERE = (Allocation(name, "node", f"GPU-{name}", "A100", 2 << 30, 250) for name in ("a", "b"))
PLAIN = ClaimSpec(ask=Ask(1, 250), suspendable=True, pod=PodReference("train", "u"))
# `movable` is what the release before this one does not know.
NEWER = dataclasses.replace(PLAIN, movable=True)
HELD = ClaimStatus(phase=Phase.ALLOCATED, reason=Reason.ALLOCATED, message="it has its share", allocations=(HERE,))
MOVES = dataclasses.replace(HELD, reason=Reason.MOVING, move=Move("a", (THERE,)))
CLAIMS = {"plain": (PLAIN, HELD), "newer": (NEWER, HELD), "written": (NEWER, HELD), "moves": (NEWER, MOVES)}
# As docs/operations.md says it.
KEEPING = ("--reset-then-reuse-values", "--set", "crds.enabled=false")
# Run by that release's Python: what each claim holds, or that it cannot be read.
READER = """
import json, sys
from remotegpu.api.claims import GPUClaim
def read(stored):
    try:
        claim = GPUClaim.from_object(stored)
    except ValueError as error:
        return str(error)
    return [claim.status.phase, [[each.gpu, each.memory, each.milli] for each in claim.status.allocations]]
print(json.dumps({each["metadata"]["name"]: read(each) for each in json.load(sys.stdin)["items"]}))
"""


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart and the Python of the release before this one."""
    commit = yaml.safe_load((ROOT / "remoting/registry/wire.yaml").read_text())["previous"]
    packed = subprocess.run(
        ["git", "archive", commit, "charts", "crds", "remoting/remotegpu"], cwd=ROOT, capture_output=True
    )
    if packed.returncode:
        pytest.skip(f"commit {commit}, the release before this one, is not in this clone: `git fetch --unshallow`")
    folder = tmp_path_factory.mktemp("older")
    subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
    return folder


class Cluster:
    def __init__(self, server: ApiServer) -> None:
        self.server = server

    def helm(self, *arguments: str) -> None:
        """No hooks: nothing here could run a pod."""
        helm(*arguments, "--namespace", NAMESPACE, "--no-hooks", kubeconfig=self.server.kubeconfig)

    def knows(self, field: str, *, is_so: bool) -> None:
        """The API server serves the definitions some moments after they were written."""

        def explained() -> bool:
            return self.server.kubectl("explain", f"gpuclaim.spec.{field}", check=False).returncode == 0

        until(lambda: explained() == is_so, 30, f"spec.{field} of GPUClaims is served: {is_so}")

    def create(self) -> None:
        """Claims of each kind, and a pool whose idle time the release before this one does not know; nothing else."""
        self.server.kubectl("delete", "gpuclaims,gpupools", "--all")
        for name, (spec, status) in CLAIMS.items():
            self.apply("GPUClaim", name, spec.to_object())
            self.patch("gpuclaim", name, {"status": status.to_object()}, "--subresource=status")
        self.apply("GPUPool", "default", PoolSpec(idle=IdleSpec(after=3600), cordoned=frozenset({"node"})).to_object())

    def apply(self, kind: str, name: str, spec: Object) -> None:
        metadata = {"name": name, **({"namespace": "default"} if kind == "GPUClaim" else {})}
        self.server.apply({"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec})

    def patch(self, kind: str, name: str, body: Object, *options: str) -> None:
        self.server.kubectl("patch", kind, name, "--type=merge", f"-p={json.dumps(body)}", *options)

    def claims(self) -> dict[str, Object]:
        items = json.loads(self.server.kubectl("get", "gpuclaims", "-o", "json").stdout)["items"]
        return {each["metadata"]["name"]: each for each in items}

    def pool(self) -> PoolSpec:
        return GPUPool.from_object(
            json.loads(self.server.kubectl("get", "gpupool", "default", "-o", "json").stdout)
        ).spec

    def read_by(self, older: Path) -> Any:
        items = json.dumps({"items": list(self.claims().values())})
        command = [sys.executable, "-c", READER]
        environment = {"PYTHONPATH": str(older / "remoting")}
        done = subprocess.run(command, input=items, env=environment, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def server(older: Path) -> Iterator[ApiServer]:
    """Revision 1 is the release before this one, revision 2 ours."""
    with api_server() as it:
        Cluster(it).helm("install", "remotegpu", str(older / "charts/remotegpu"), "--create-namespace")
        Cluster(it).helm("upgrade", "remotegpu", str(CHART))
        yield it


@pytest.fixture
def cluster(server: ApiServer) -> Cluster:
    """With our release, and claims."""
    it = Cluster(server)
    it.knows("movable", is_so=True)
    until(lambda: server.kubectl("get", "gpuclaims,gpupools", check=False).returncode == 0, 30, "they are served")
    it.create()
    return it


def write_as_the_older_operator(cluster: Cluster) -> None:
    cluster.patch("gpuclaim", "written", {"status": {"message": "still there"}}, "--subresource=status")


def specs(claims: dict[str, Object]) -> dict[str, ClaimSpec]:
    return {name: GPUClaim.from_object(each).spec for name, each in claims.items()}


def test_what_both_know_outlives_a_rollback(cluster: Cluster, older: Path) -> None:
    before, pool = cluster.claims(), cluster.pool()
    cluster.helm("rollback", "remotegpu", "1")
    cluster.knows("movable", is_so=False)
    read = cluster.read_by(older)
    # Why nothing may be on its way then.
    assert "Moving" in read.pop("moves")
    held = ["Allocated", [[HERE.gpu, HERE.memory, HERE.milli]]]
    assert read == {"plain": held, "newer": held, "written": held}
    write_as_the_older_operator(cluster)

    cluster.helm("rollback", "remotegpu", "2")
    cluster.knows("movable", is_so=True)
    after = cluster.claims()
    assert cluster.pool() == pool
    written = after.pop("written")
    assert after == {name: each for name, each in before.items() if name != "written"}
    # What the older release wrote has lost what its CRDs do not know, and nothing else.
    claim = GPUClaim.from_object(written)
    assert (claim.spec, claim.status.allocations) == (PLAIN, HELD.allocations)


def test_nothing_is_lost_where_the_newer_definitions_stay(cluster: Cluster, older: Path) -> None:
    before = specs(cluster.claims())
    cluster.helm("upgrade", "remotegpu", str(older / "charts/remotegpu"), *KEEPING)
    write_as_the_older_operator(cluster)
    assert cluster.read_by(older)["written"][0] == "Allocated"
    cluster.helm("upgrade", "remotegpu", str(CHART))
    cluster.knows("movable", is_so=True)
    assert specs(cluster.claims()) == before
