"""Statuses that the operator did not write, as a backup brings them back. Stand-ins report which claims they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.apiserver import ApiServer
from support.kubelab import (
    CLAIMS,
    MIB,
    POOLS,
    Kube,
    Object,
    Operator,
    claim,
    gated_pod,
    in_parallel,
    node,
    operator,
    pool,
    ready,
    shares,
)
from support.kubenodes import Appliance, Nodes
from support.system import until

from remotegpu.api.claims import lease_id_of

pytestmark = pytest.mark.timeout(240)

TEAM = "/api/v1/namespaces/team"
MINE = CLAIMS.format("team")
GPU_MEMORY = 1024 * MIB
NO_ROOM = "GPU 0 has 307 MiB free"


@pytest.fixture
def nodes(kube: Kube) -> Iterator[Nodes]:
    kube.namespace("team")
    kube("POST", "/api/v1/nodes", node("node-a"))
    kube("POST", POOLS, pool("default", software={"gpus": 2, "memory": GPU_MEMORY}))
    with Nodes(kube, subnet=15) as running:
        yield running


@pytest.fixture
def running(server: ApiServer, kube: Kube, nodes: Nodes, folder: Path) -> Iterator[Operator]:
    del nodes
    with operator(server.kubeconfig, folder) as it:
        ready(kube, 1)
        yield it


def stored(kube: Kube, name: str) -> Object:
    found: Object = kube.get(f"{MINE}/{name}")
    return found


def state(kube: Kube, name: str) -> tuple[str, str]:
    status = (kube.find(f"{MINE}/{name}") or {}).get("status") or {}
    return status.get("phase", ""), status.get("reason", "")


def make(kube: Kube, name: str, fraction: str) -> Object:
    kube("POST", MINE, claim(name, "default", fraction=fraction))
    until(lambda: state(kube, name)[0] == "Allocated", 30, f"{name} has its share")
    return stored(kube, name)


def restore(kube: Kube, name: str, status: Object) -> Object:
    """Writes a status as an administrator does."""
    found: Object = kube("PUT", f"{MINE}/{name}/status", stored(kube, name) | {"status": status})
    return found


def only(nodes: Nodes) -> Appliance:
    (appliance,) = nodes.appliances.values()
    return appliance


def refuse(nodes: Nodes, *claims: Object) -> None:
    only(nodes).unserved = {lease_id_of(each["metadata"]["uid"]): NO_ROOM for each in claims}


def test_of_two_claims_that_are_too_much_for_a_gpu_the_refused_one_gets_another(
    kube: Kube, nodes: Nodes, running: Operator
) -> None:
    first, second = make(kube, "first", "0.7"), make(kube, "second", "0.7")
    running.kill()
    restore(kube, "second", second["status"] | {"allocations": first["status"]["allocations"]})
    assert max(shares(kube).values()) > GPU_MEMORY, "more than the GPU has"
    refuse(nodes, second)
    running.restart()
    before = first["status"]["allocations"]
    until(lambda: stored(kube, "second")["status"].get("allocations") not in (before, None), 60, "it has another GPU")
    assert all(memory <= GPU_MEMORY for memory in shares(kube).values())
    assert stored(kube, "first")["status"] == first["status"], "the claim that is served stays as it was"


def test_the_status_of_a_claim_that_ended_counts_where_the_appliance_serves_it(
    kube: Kube, nodes: Nodes, running: Operator
) -> None:
    """Its GPU has gone to another claim. What no appliance refuses is believed, and stays as it is."""
    ended, stays = make(kube, "ended", "0.7")["status"], make(kube, "stays", "0.7")
    kube("DELETE", f"{MINE}/ended")
    make(kube, "successor", "0.7")
    running.kill()
    kube("POST", MINE, claim("ended", "default", fraction="0.7"))
    back = restore(kube, "ended", ended)
    refuse(nodes, back)
    running.restart()
    until(lambda: state(kube, "ended") == ("Pending", "WaitingForCapacity"), 60, "it waits as if it were new")
    assert not stored(kube, "ended")["status"].get("allocations")
    assert stored(kube, "stays")["status"] == stays["status"]
    refuse(nodes)
    kube("DELETE", f"{MINE}/successor")
    until(lambda: state(kube, "ended")[0] == "Allocated", 30, "it has the share that is free now")


def test_a_pod_does_not_start_on_a_share_that_its_appliance_refuses(
    kube: Kube, nodes: Nodes, running: Operator
) -> None:
    make(kube, "large", "0.7"), make(kube, "also", "0.7")
    pod = kube("POST", f"{TEAM}/pods", gated_pod("p", "default", 500))
    name = f"p-{pod['metadata']['uid']}"
    until(lambda: state(kube, name)[0] == "Pending", 30, "it waits for a share")
    running.kill()
    # An administrator writes a status by which its share is beside a claim that leaves too little room.
    status = stored(kube, "large")["status"]
    back = restore(kube, name, status | {"consumers": [{"name": "p", "uid": pod["metadata"]["uid"]}]})
    refuse(nodes, back)
    running.restart()
    until(lambda: state(kube, name) == ("Pending", "WaitingForCapacity"), 60, "it waits again")
    assert kube.get(f"{TEAM}/pods/p")["spec"].get("schedulingGates"), "its pod was not let go meanwhile"


def test_a_pod_waits_for_an_appliance_that_has_not_read_its_claims(kube: Kube, nodes: Nodes, running: Operator) -> None:
    """Starts appliances and operator together, as after a restore. What refuses nothing may not have looked."""
    del running
    appliance = only(nodes)

    def reports() -> None:
        calls = appliance.calls
        until(lambda: appliance.calls > calls + 2, 30, "two whole reports later")

    appliance.claims_unknown = True
    reports()
    pod = kube("POST", f"{TEAM}/pods", gated_pod("p", "default", 500))
    name = f"p-{pod['metadata']['uid']}"
    until(lambda: state(kube, name)[0] == "Allocated", 30, "it has its share")
    reports()
    assert kube.get(f"{TEAM}/pods/p")["spec"].get("schedulingGates"), "nobody has confirmed the share"
    appliance.claims_unknown = False
    until(lambda: not kube.get(f"{TEAM}/pods/p")["spec"].get("schedulingGates"), 30, "it starts")


def test_a_claim_that_its_appliance_refuses_again_goes_to_another(kube: Kube, nodes: Nodes, running: Operator) -> None:
    """An appliance whose GPU has less room than it says. It is the one that the allocator would take each time."""
    del running
    kube("POST", "/api/v1/nodes", node("node-b"))
    ready(kube, 2)
    (first,) = make(kube, "mine", "0.5")["status"]["allocations"]
    nodes.appliances[f"{first['appliance']}-0"].unserved = {
        lease_id_of(stored(kube, "mine")["metadata"]["uid"]): NO_ROOM
    }

    def where() -> set[str]:
        return {each["appliance"] for each in stored(kube, "mine")["status"].get("allocations") or []}

    until(lambda: where() not in ({first["appliance"]}, set()), 60, "it is elsewhere")


def test_while_an_appliance_does_not_answer_its_claims_say_so_and_keep_their_shares(
    kube: Kube, nodes: Nodes, running: Operator
) -> None:
    before = make(kube, "mine", "0.5")
    running.kill()
    only(nodes).stop()
    running.restart()
    until(lambda: state(kube, "mine") == ("Lost", "ApplianceLost"), 60, "it says that nobody can confirm it")
    found = stored(kube, "mine")["status"]
    assert found["allocations"] == before["status"]["allocations"]
    conditions = {each["type"]: each for each in found["conditions"]}
    assert conditions["Ready"]["status"] == "False" and "does not answer" in conditions["Ready"]["message"]


def test_an_operator_that_starts_anew_changes_nothing_of_what_appliances_serve(
    kube: Kube, nodes: Nodes, running: Operator
) -> None:
    """24 claims. Not one is written, so none is slower than before."""
    names = [f"c{number:02}" for number in range(24)]
    in_parallel(lambda name: kube("POST", MINE, claim(name, "default", fraction="0.08")), names)
    until(lambda: all(state(kube, name)[0] == "Allocated" for name in names), 60, "all have a share")
    running.kill()
    before = {name: stored(kube, name)["metadata"]["resourceVersion"] for name in names}
    calls = only(nodes).calls
    running.restart()
    # A claim that comes now is served after what was there was read.
    make(kube, "new", "0.04")
    until(lambda: only(nodes).calls > calls + 4, 30, "some reports later")
    assert {name: stored(kube, name)["metadata"]["resourceVersion"] for name in names} == before
