"""What the operator records of usage, compared with what the test itself saw and did at the API server."""

from __future__ import annotations

import datetime
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.apiserver import ApiServer
from support.kubelab import CLAIMS, MIB, POOLS, SYSTEM, Kube, RefusedError, claim, node, operator, pool, ready
from support.kubenodes import Nodes
from support.system import until

from remotegpu.api import usage
from remotegpu.api.usage import Holding, Record

TEAM = "team"
MINE = CLAIMS.format(TEAM)
KILLS = 20
CONFIG_MAPS = f"/api/v1/namespaces/{SYSTEM}/configmaps"
# The API server's stamps have whole seconds, and a deletion takes a moment to be told.
TOLERANCE = 2


def recorded(kube: Kube) -> Record:
    return usage.read(each for each in kube.items(CONFIG_MAPS) if usage.USAGE_LABEL in each["metadata"]["labels"])


@dataclass
class Ledger:
    """What the claims' statuses said, and when the test deleted them."""

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
    """20 times, at random moments, while claims come and go, some of them while no operator runs."""
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
        # What the last of them did is recorded, too.
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
    """In exactly the state that the ledger knows."""
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
    # What was never stored in a status has no time that is certain.
    for uid in found.keys() - ledger.began.keys():
        assert all(holding.end == holding.start for holding in found[uid]), found[uid]
    print(f"{len(ledger.began)} claims, of which {gaps} went while nobody looked")
    assert len(ledger.began) >= KILLS and gaps > 0
