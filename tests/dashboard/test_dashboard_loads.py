"""Sessions and load: an appliance's figures, over TLS to a dashboard with a real API server, and who may see them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, cast

from support.dashboard import GPU, Page
from support.kubelab import MIB, SYSTEM
from support.kubenodes import Appliance
from support.system import until

from remotegpu.api.kubernetes import APPLIANCE_LABEL, AUDIENCE, appliance_audience
from remotegpu.api.pools import AppliancePhase, ApplianceStatus
from remotegpu.dashboard.load import Reading, load_of
from remotegpu.dashboard.state import Scope
from remotegpu.rpc import pb
from remotegpu_operator.appliances.tokens import NoTokenError
from remotegpu_operator.dashboard.loads import Loads

Object = dict[str, Any]


def lease(claim: str, gpus: dict[str, int], sessions: int = 1) -> pb.Lease:
    places = [pb.Place(gpu=gpu, used_bytes=used) for gpu, used in gpus.items()]
    return pb.Lease(lease_id=f"lease of {claim}", claim=claim, sessions=sessions, places=places)


def reading(*leases: pb.Lease, at: float = 100.0, **busy: float) -> Reading:
    gpus = [pb.Gpu(uuid=uuid, used_bytes=sum(p.used_bytes for each in leases for p in each.places if p.gpu == uuid))
            for uuid in ("one", "two")]  # fmt: skip
    return Reading(pb.InventoryReply(gpus=gpus, leases=leases), at, {("lease of a/x", gpu): busy[gpu] for gpu in busy})


def test_gpus_and_claims_have_the_sums_of_their_leases() -> None:
    first = reading(lease("a/x", {"one": 5, "two": 6}, 2), lease("b/y", {"one": 7}), at=98.0, one=0.25, two=0.5)
    found = load_of({"first": first, "second": reading(lease("a/x", {"one": 1}))}, Scope(None, True), 100.0)
    assert found["claims"] == {
        "a/x": {"sessions": 3, "used": 12, "busy": 0.75, "age": 2},
        "b/y": {"sessions": 1, "used": 7, "busy": None, "age": 2},
    }
    assert found["gpus"]["first one"] == {"sessions": 3, "used": 12, "busy": 0.25, "age": 2}
    assert found["gpus"]["second two"] == {"sessions": 0, "used": 0, "busy": None, "age": 0}


def test_of_what_a_reader_may_not_list_there_is_no_load() -> None:
    readings = {"first": reading(lease("a/x", {"one": 5}), lease("b/y", {"one": 7}))}
    found = load_of(readings, Scope(frozenset({"a"}), False), 100.0)
    assert (found["claims"].keys(), found["gpus"], found["problems"]) == ({"a/x"}, {}, {})


class Cluster:
    """A stand-in for the API server: it has pods, and issues tokens."""

    def __init__(self, pods: list[Object]) -> None:
        self.pods = pods
        self.asked: list[str] = []
        self.kept: set[str] = set()
        self.lists = 0

    async def get(self, *_: object) -> Object:
        return {"data": {"bundle.crt": ""}}

    async def list(self, _resource: object, _namespace: str, labels: str) -> tuple[list[Object], str]:
        assert labels == APPLIANCE_LABEL
        self.lists += 1
        return self.pods, "1"

    async def token(self, audience: str) -> str:
        self.asked.append(audience)
        raise NoTokenError("a test makes none")

    def keep(self, audiences: Iterable[str]) -> None:
        self.kept = set(audiences)


def pod(name: str, ip: str, *arguments: str) -> Object:
    containers = [{"args": ["--kubernetes", *arguments]}]
    status = {"podIP": ip, "containerStatuses": [{"state": {"running": {}}}]}
    return {"metadata": {"labels": {APPLIANCE_LABEL: name}}, "spec": {"containers": containers}, "status": status}


def test_appliances_are_shown_the_token_that_their_release_takes() -> None:
    """The dashboard uses the operator's tokens: an appliance of the previous release has no audience of its own."""

    async def run() -> None:
        cluster = Cluster([pod("new", "10.0.0.1", "--pool", "p"), pod("old", "10.0.0.2")])
        known = {"new": "10.0.0.1", "old": "10.0.0.2", "gone": "10.0.0.3"}

        def appliances() -> list[ApplianceStatus]:
            return [
                ApplianceStatus(name, "n", AppliancePhase.READY, address=f"{ip}:7070") for name, ip in known.items()
            ]

        loads = Loads(cast("Any", cluster), SYSTEM, cast("Any", cluster), appliances)
        try:
            await loads._ask_all()
            own = {name: appliance_audience(name) for name in known}
            assert sorted(cluster.asked) == sorted([own["new"], AUDIENCE, own["gone"]])
            del known["gone"]
            await loads._ask_all()
            assert (cluster.lists, cluster.kept) == (1, {own["new"], AUDIENCE})
            # It is updated: another pod, at another address.
            cluster.pods[1] = pod("old", "10.0.0.4", "--pool", "p")
            known["old"] = "10.0.0.4"
            await loads._ask_all()
            assert (cluster.lists, cluster.kept) == (2, {own["new"], own["old"]})
        finally:
            loads.close()

    asyncio.run(run())


def test_a_pod_whose_container_is_not_running_yet_is_looked_at_again() -> None:
    """It starts anew at its old address, when somebody opens the page."""

    async def run() -> None:
        begins = pod("old", "10.0.0.2")
        begins["status"]["containerStatuses"] = [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]
        cluster = Cluster([begins])
        status = ApplianceStatus("old", "n", AppliancePhase.READY, address="10.0.0.2:7070")
        loads = Loads(cast("Any", cluster), SYSTEM, cast("Any", cluster), lambda: [status])
        try:
            await loads._ask_all()
            cluster.pods = [pod("old", "10.0.0.2")]
            await loads._ask_all()
            await loads._ask_all()
            assert (cluster.asked[1:], cluster.kept, cluster.lists) == ([AUDIENCE, AUDIENCE], {AUDIENCE}, 2)
        finally:
            loads.close()

    asyncio.run(run())


def test_a_dashboard_tells_what_the_appliance_says(
    page: Page, appliance: Appliance, everything: str, of_team_a: str
) -> None:
    appliance.leases = [lease("team-a/train", {GPU: 64 * MIB}, 2), lease("team-b/secret-project", {GPU: 32 * MIB})]
    appliance.gpus[0].used_bytes = 96 * MIB
    key = f"a {GPU}"
    until(lambda: key in loads(page, everything)["gpus"], 20, "the appliance is asked")
    found = loads(page, everything)
    assert (found["gpus"][key]["sessions"], found["gpus"][key]["used"]) == (3, 96 * MIB)
    mine = loads(page, of_team_a)
    assert (mine["claims"].keys(), mine["gpus"]) == ({"team-a/train"}, {})
    assert (mine["claims"]["team-a/train"]["sessions"], mine["claims"]["team-a/train"]["used"]) == (2, 64 * MIB)
    # The last known figures stay, with the reason why there are no newer ones.
    appliance.stop()
    until(lambda: loads(page, everything)["problems"], 20, "it is told that it does not answer")
    assert loads(page, everything)["gpus"][key]["sessions"] == 3
    calls = appliance.calls
    assert page.get("/api/load", "nobody's").status == 401
    assert appliance.calls == calls


def loads(page: Page, token: str) -> Object:
    response = page.get("/api/load", token)
    assert response.status == 200, response.data
    found: Object = response.json()
    return found
