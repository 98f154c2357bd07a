"""Tests that compare the operator's usage record with the test's own observations of the API server."""

from __future__ import annotations

import datetime
import json
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.apiserver import ApiServer
from support.chart import render
from support.kubelab import (
    CLAIMS,
    MIB,
    POOLS,
    SYSTEM,
    Kube,
    Object,
    RefusedError,
    claim,
    gated_pod,
    node,
    operator,
    pool,
    ready,
)
from support.kubenodes import Nodes
from support.system import REMOTEGPU, until

from remotegpu.api import usage
from remotegpu.api.usage import Holding, Record
from remotegpu.rpc import pb

TEAM = "team"
MINE = CLAIMS.format(TEAM)
KILLS = 20
CONFIG_MAPS = f"/api/v1/namespaces/{SYSTEM}/configmaps"
# In seconds: the API server's times are whole seconds, and the report of a deletion arrives a moment later.
TOLERANCE = 2


def recorded(kube: Kube) -> Record:
    return usage.read(each for each in kube.items(CONFIG_MAPS) if usage.USAGE_LABEL in each["metadata"]["labels"])


@dataclass
class Ledger:
    """The times at which the shares of claims began, from their statuses, and at which the test deleted the claims."""

    began: dict[str, int] = field(default_factory=dict)
    deleted: dict[str, float] = field(default_factory=dict)
    stop: threading.Event = field(default_factory=threading.Event)

    def watch(self, kube: Kube) -> None:
        while not self.stop.wait(0.05):
            for each in kube.items(MINE):
                self.note(each)

    def note(self, thing: dict[str, object]) -> None:
        metadata, status = thing["metadata"], thing.get("status") or {}
        assert isinstance(metadata, dict) and isinstance(status, dict)
        for condition in status.get("conditions", ()):
            if condition["type"] == "Allocated" and condition["status"] == "True":
                stamp = datetime.datetime.fromisoformat(condition["lastTransitionTime"])
                self.began.setdefault(metadata["uid"], int(stamp.timestamp()))


@pytest.mark.timeout(900)
def test_a_killed_operator_misses_nothing_or_names_the_gap(server: ApiServer, kube: Kube, folder: Path) -> None:
    """The operator is killed 20 times at random moments. Claims come and go, some of them while no operator runs."""
    seed = random.randrange(1 << 32)
    dice, ledger = random.Random(seed), Ledger()
    print(f"seed {seed}")
    kube.namespace(TEAM)
    kube("POST", "/api/v1/nodes", node("node-a"))
    kube("POST", POOLS, pool("default", software={"gpus": 2, "memory": 1024 * MIB}))
    away: list[tuple[float, float]] = []
    with Nodes(kube, subnet=31), operator(server.kubeconfig, folder) as running, ThreadPoolExecutor(8) as pool_of:
        ready(kube, 1)
        watching = pool_of.submit(ledger.watch, kube)
        tenants = [pool_of.submit(_tenant, kube, ledger, number, random.Random(seed + number)) for number in range(4)]
        for _ in range(KILLS):
            assert not any(each.done() for each in (watching, *tenants)), "a tenant failed"
            time.sleep(dice.uniform(0.2, 4))
            running.kill()
            died = time.time()
            time.sleep(dice.choice([0, 0, 1, 5]))
            running.restart()
            until(running.leads, 60, "it leads again")
            away.append((died, time.time()))
        ledger.stop.set()
        for each in (watching, *tenants):
            each.result()
        # The last claim's usage is recorded, too.
        until(lambda: not kube.items(MINE) and not recorded(kube).open(), 30, "the record has an end for each")
        record = recorded(kube)
    assert not record.problems
    _compare(ledger, record, away)


def _tenant(kube: Kube, ledger: Ledger, number: int, dice: random.Random) -> None:
    count = 0
    while not ledger.stop.is_set():
        count += 1
        body = claim(f"c{number}-{count}", "default", fraction=str(dice.choice(["0.25", "0.5", "0.125"])))
        made = kube("POST", MINE, body)
        time.sleep(dice.uniform(0.1, 6))
        path = f"{MINE}/c{number}-{count}"
        _delete(kube, ledger, path)
        ledger.deleted[made["metadata"]["uid"]] = time.time()


def _delete(kube: Kube, ledger: Ledger, path: str) -> None:
    """Deletes the claim in exactly the state that `ledger` has noted."""
    while True:
        last = kube.get(path)
        ledger.note(last)
        try:
            kube("DELETE", path, {"preconditions": {"resourceVersion": last["metadata"]["resourceVersion"]}})
            return
        except RefusedError as error:
            if error.status != 409:
                raise


def _compare(ledger: Ledger, record: Record, away: list[tuple[float, float]]) -> None:
    found: dict[str, list[Holding]] = {}
    for holding in record.holdings.values():
        if not holding.void:
            found.setdefault(holding.uid, []).append(holding)
    missing = ledger.began.keys() - found.keys()
    assert not missing, f"{len(missing)} of {len(ledger.began)} claims are not in the record"
    gaps = 0
    for uid, began in ledger.began.items():
        (holding,) = found[uid]
        assert holding.start == began
        assert holding.end is not None
        truth = ledger.deleted[uid]
        assert holding.end - TOLERANCE <= truth <= holding.end + holding.unknown + TOLERANCE, (holding, truth)
        if holding.unknown > TOLERANCE:
            gaps += 1
            died, back = min(away, key=lambda each: abs((each[0] + each[1]) / 2 - truth))
            assert died - TOLERANCE <= truth <= back + 10, "it went while an operator looked"
    # A share that was never stored in a status counts only as uncertain time.
    for uid in found.keys() - ledger.began.keys():
        assert all(holding.end == holding.start for holding in found[uid]), found[uid]
    print(f"{len(ledger.began)} claims, of which {gaps} went while nobody looked")
    assert len(ledger.began) >= KILLS and gaps > 0


# Tests of figures, idle claims and the audit log, with one appliance.

PRICE = {"prices": [{"model": "software", "gpuHour": "3600"}]}
LEAST = 3  # seconds


@dataclass
class Scene:
    server: ApiServer
    kube: Kube
    nodes: Nodes
    log: Callable[[], str]

    def make(self, name: str, fraction: str = "0.25") -> str:
        made = self.kube("POST", MINE, claim(name, "default", fraction=fraction))
        until(lambda: self.status(name).get("phase") == "Allocated", 30, f"{name} has its share")
        uid: str = made["metadata"]["uid"]
        return uid

    def status(self, name: str) -> Object:
        found: Object = (self.kube.find(f"{MINE}/{name}") or {}).get("status") or {}
        return found

    def has_sessions(self, *uids: str) -> None:
        (appliance,) = self.nodes.appliances.values()
        appliance.leases = [pb.Lease(claim_uid=uid, sessions=1) for uid in uids]

    def usage(self, *options: str) -> list[Object]:
        done = self.run(*options, "--json")
        assert done.returncode == 0, done.stderr
        found: list[Object] = json.loads(done.stdout)
        return found

    def run(self, *options: str, kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
        command = [REMOTEGPU, "usage", "--kubeconfig", str(kubeconfig or self.server.kubeconfig), *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    def audit(self) -> list[Object]:
        return [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]

    def events(self, about: str) -> set[str]:
        found = self.kube.items(f"/api/v1/namespaces/{TEAM}/events")
        return {each["reason"] for each in found if each["involvedObject"]["name"] == about}


@pytest.fixture
def scene(server: ApiServer, kube: Kube, folder: Path) -> Iterator[Scene]:
    kube.namespace(TEAM)
    kube("POST", "/api/v1/nodes", node("node-a"))
    kube("POST", POOLS, pool("default", software={"gpus": 2, "memory": 1024 * MIB}, **PRICE))
    with Nodes(kube, subnet=32) as nodes, operator(server.kubeconfig, folder) as running:
        ready(kube, 1)
        yield Scene(server, kube, nodes, lambda: running.log)


@pytest.mark.timeout(300)
def test_what_the_command_says_of_claims_that_use_their_share_and_do_not(scene: Scene, kube: Kube) -> None:
    busy = scene.make("busy", "0.5")
    scene.make("unused", "0.25")
    scene.has_sessions(busy)
    until(lambda: _used(kube, busy) > 0, 60, "it is recorded that it has a session")
    began = {each.claim: each.start for each in recorded(kube).open()}
    stamps = {each["metadata"]["name"]: each["metadata"]["creationTimestamp"] for each in kube.items(MINE)}
    made = {name: int(datetime.datetime.fromisoformat(each).timestamp()) for name, each in stamps.items()}
    assert {each.claim: each.created for each in recorded(kube).open()} == made
    for name in ("busy", "unused"):
        kube("DELETE", f"{MINE}/{name}")
    until(lambda: not recorded(kube).open(), 30, "the record has an end for each")
    ended = time.time()
    rows = {each["claim"]: each for each in scene.usage("--since", "1h", "--by", "claim")}
    for name, part in (("busy", 0.5), ("unused", 0.25)):
        row = rows[f"{TEAM}/{name}"]
        seconds = row["gpu_seconds"] / part
        assert abs(seconds - (ended - began[name])) <= TOLERANCE, row
        # A second of a whole GPU costs 1.
        assert row["cost"] == pytest.approx(row["gpu_seconds"], abs=0.001)
        assert row["byte_seconds"] == pytest.approx(seconds * part * (1024 * MIB), rel=0.01)
        assert row["unknown_gpu_seconds"] == 0
    assert 0 < rows[f"{TEAM}/busy"]["used_gpu_seconds"] <= rows[f"{TEAM}/busy"]["gpu_seconds"]
    assert rows[f"{TEAM}/unused"]["used_gpu_seconds"] == 0
    (together,) = scene.usage("--by", "namespace,model")
    assert together["gpu_seconds"] == sum(each["gpu_seconds"] for each in rows.values())
    assert (together["namespace"], together["model"]) == (TEAM, "Software GPU")
    lines = scene.run("-o", "csv", "--by", "pool").stdout.splitlines()
    assert lines[0] == "pool,gpu_seconds,used_gpu_seconds,byte_seconds,unknown_gpu_seconds,cost"
    assert lines[1].split(",")[:2] == ["default", str(together["gpu_seconds"])]
    assert scene.usage("--since", "2026-01-01", "--until", "2026-01-02") == []


def _used(kube: Kube, uid: str) -> int:
    record = recorded(kube)
    return sum(each.used_until(record.until) for each in record.holdings.values() if each.uid == uid)


@pytest.mark.timeout(300)
def test_who_uses_nothing_is_told_and_released_where_the_pool_says_so(scene: Scene, kube: Kube) -> None:
    uids = {name: scene.make(name) for name in ("busy", "saved", "unused")}
    scene.has_sessions(uids["busy"])

    def idle() -> set[str]:
        return {each["claim"] for each in scene.usage("--idle", f"{LEAST}s")}

    # The start of a session is recorded some seconds later.
    until(lambda: idle() == {"saved", "unused"}, 60, "two are idle")
    # The pool has no rule for idle claims yet.
    assert "Idle" not in scene.events("unused")
    kube.merge(f"{POOLS}/default", {"spec": {"idle": {"after": f"{LEAST}s", "action": "Release", "grace": "10s"}}})
    until(lambda: "Idle" in scene.events("saved"), 30, "it is warned")
    scene.has_sessions(uids["busy"], uids["saved"])
    until(lambda: kube.find(f"{MINE}/unused") is None, 60, "the share goes back")
    assert {"Idle", "ReleasedIdle"} <= scene.events("unused")
    told = {each["audit"]: each for each in scene.audit() if each.get("claim") == "unused"}
    assert list(told) == ["allocated", "idle", "released"]
    between = [datetime.datetime.fromisoformat(told[each]["time"]) for each in ("idle", "released")]
    assert (between[1] - between[0]).total_seconds() >= 9.5
    assert told["released"]["reason"] == "ReleasedIdle"
    for name in ("busy", "saved"):
        assert scene.status(name)["phase"] == "Allocated"
    assert "Idle" not in scene.events("busy")


@pytest.mark.timeout(300)
def test_every_decision_is_a_line_that_says_who_and_why(scene: Scene, kube: Kube) -> None:
    pods = f"/api/v1/namespaces/{TEAM}/pods"
    kube("POST", pods, gated_pod("train", "default", 2000))
    until(lambda: any(each["audit"] == "allocated" for each in scene.audit()), 30, "the pod has its share")
    scene_of_refusal = claim("waits", "default", fraction="0.5")
    kube("POST", MINE, scene_of_refusal)
    until(lambda: any(each["audit"] == "refused" for each in scene.audit()), 30, "another one waits")
    kube("DELETE", f"{pods}/train", {"gracePeriodSeconds": 0})
    until(lambda: len([each for each in scene.audit() if each["audit"] == "allocated"]) == 2, 30, "it has it then")
    kube.merge(f"{MINE}/waits", {"spec": {"suspend": True}})
    (appliance,) = scene.nodes.appliances.values()
    waits = kube.get(f"{MINE}/waits")
    (place,) = waits["status"]["allocations"]
    until(lambda: any(each["audit"] == "suspending" for each in scene.audit()), 30, "it is to be suspended")
    lease = pb.Lease(claim_uid=waits["metadata"]["uid"], suspended="test", places=[pb.Place(gpu=place["gpu"])])
    appliance.leases = [lease]
    until(lambda: any(each["audit"] == "suspended" for each in scene.audit()), 30, "it is suspended")
    lines = scene.audit()
    assert all(each["why"] and each["reason"] and each["time"] for each in lines)
    first = lines[0]
    assert (first["audit"], first["pod"], first["user"]) == (
        "allocated",
        "train",
        f"system:serviceaccount:{TEAM}:default",
    )
    assert [(each["model"], each["milli"]) for each in first["gpus"]] == [("Software GPU", 1000)] * 2
    (released,) = [each for each in lines if each["audit"] == "released"]
    assert (released["reason"], released["gpus"], released["user"]) in (
        ("PodEnded", [], first["user"]),
        ("PodGone", [], first["user"]),
    )
    (refused,) = [each for each in lines if each["audit"] == "refused"]
    assert (refused["claim"], refused["reason"]) == ("waits", "WaitingForCapacity")
    # A suspended claim keeps some memory, but no thousandths of a GPU.
    until(lambda: any(not each.shares[0].milli for each in recorded(kube).open()), 30, "it holds nothing of the GPU")


@pytest.mark.timeout(120)
def test_only_who_is_bound_to_the_charts_role_reads_the_record(scene: Scene, kube: Kube, tmp_path: Path) -> None:
    """Other users get one line that says what to do."""
    scene.make("theirs")
    until(lambda: len(recorded(kube).open()) == 1, 30, "it is recorded")
    theirs = scene.server.kubeconfig_of(TEAM, "auditor")
    done = scene.run(kubeconfig=theirs)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "Role remotegpu-usage of namespace remotegpu-system" in done.stderr
    (role,) = [each for each in render({}, tmp_path) if each["metadata"]["name"] == "remotegpu-usage"]
    rules = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{SYSTEM}"
    kube("POST", f"{rules}/roles", role)
    kube("POST", f"{rules}/rolebindings", {
        "metadata": {"name": "auditors"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "remotegpu-usage"},
        "subjects": [{"kind": "ServiceAccount", "name": "auditor", "namespace": TEAM}],
    })  # fmt: skip
    # A new role takes effect on the API server after some moments.
    until(lambda: TEAM in scene.run(kubeconfig=theirs).stdout, 30, "they see it")
    # Without the right to read pools there are no costs.
    assert "no costs, because pools cannot be read" in scene.run(kubeconfig=theirs).stderr
    nowhere = scene.run("--system", "default")
    assert "recorded nothing in namespace default" in nowhere.stderr
