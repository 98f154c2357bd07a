"""`remotegpu top` of a cluster: the rows against the objects, and the live view with a real API server."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from support.apiserver import ApiServer
from support.dashboard import GPU, Page, may
from support.faultproxy import FaultProxy
from support.kubelab import CLAIMS, SYSTEM
from support.system import REMOTEGPU
from support.top import drawn, said, seen, texts
from textual.pilot import Pilot

from remotegpu.api.snapshot import Claim, State
from remotegpu.cli import exits
from remotegpu.cli.cluster.objects import Cluster
from remotegpu.cli.top.cluster import ClusterSnapshot, ClusterSource
from remotegpu.cli.top.screen import TopApp

GIB = 1 << 30
# 2026-11-01T10:00:00Z
CREATED = 1793527200.0


def claim(namespace: str, name: str, phase: str, reason: str, position: int = 0, memory: int = 0) -> Claim:
    return {
        "namespace": namespace, "name": name, "pool": "default", "mode": "driver", "asks": "0.25 of a GPU",
        "priority": 0, "suspendable": False, "pods": [f"{name}-pod"], "created": "2026-11-01T10:00:00Z",
        "phase": phase, "reason": reason, "message": "because", "position": position,
        "gpus": "1 x Test" if memory else "-", "milli": 250 if memory else 0, "conditions": [],
        "shares": [{"appliance": "a", "gpu": "GPU-0", "memory": memory}] if memory else [],
    }  # fmt: skip


def state() -> State:
    """`run` has a quarter of the first GPU; a claim of another namespace has another one; two wait."""
    gpu = {"uuid": "GPU-0", "model": "Test", "memory": GIB, "shareable": GIB, "healthy": True}
    gpu |= {"allocatedMemory": GIB // 2, "allocatedMilli": 500}
    broken = {"uuid": "GPU-1", "model": "Test", "memory": GIB, "shareable": GIB, "healthy": False, "message": "Xid 79"}
    claims = [
        claim("team", "second", "Pending", "WaitingForCapacity", 2),
        claim("team", "run", "Allocated", "Allocated", memory=GIB // 4),
        claim("team", "first", "Pending", "WaitingForCapacity", 1),
    ]
    return {
        "pools": [
            {
                "name": "default", "backend": "software", "computeMode": "shared",
                "phase": "Degraded", "message": "half", "schedules": [],
                "total": {"milli": 2000, "memory": "2Gi"}, "free": {"milli": 500, "memory": "512Mi"},
                "appliances": [
                    {
                        "name": "a", "node": "n", "phase": "Ready", "message": "",
                        "cordoned": True, "gpus": [gpu, broken],
                    },
                    {
                        "name": "b", "node": "m", "phase": "Starting", "message": "no pod",
                        "cordoned": False, "gpus": [],
                    },
                ],
            }
        ],
        "claims": {f"{each['namespace']}/{each['name']}": each for each in claims},
    }  # fmt: skip


def test_rows_are_what_the_snapshot_says() -> None:
    view = ClusterSnapshot("https://c", state(), CREATED).view(CREATED + 3661)
    pools, gpus, claims = view.tables
    assert view.title == "https://c: pools: 1, claims: 3, of which wait: 2"
    assert texts(pools) == [["default", "Degraded", "0.5", "2", "512.0 MiB", "2", "half"]]
    assert texts(gpus) == [
        ["default", "a", "GPU-0", "Test", "█████░░░░░··········", "512.0 MiB", "1.0 GiB", "Ready, cordoned"],
        ["default", "a", "GPU-1", "Test", "····················", "0 B", "1.0 GiB", "Ready, cordoned, broken: Xid 79"],
        ["default", "b", "-", "-", "-", "0 B", "0 B", "Starting: no pod"],
    ]
    waits = ["0.25 of a GPU", "Pending", "WaitingForCapacity"]
    assert texts(claims) == [
        ["team/first", "first-pod", "default", *waits, "1", "-", "1h01m"],
        ["team/run", "run-pod", "default", "0.25 of a GPU", "Allocated", "Allocated", "-", "1 x Test", "1h01m"],
        ["team/second", "second-pod", "default", *waits, "2", "-", "1h01m"],
    ]
    assert view.notes == ()
    assert gpus.rows[0].story[-2:] == (
        "  has        256.0 MiB: team/run, Allocated",
        "  others     256.0 MiB: claims that are not shown",
    )


def test_places_that_are_not_known_are_not_told() -> None:
    view = ClusterSnapshot("https://c", state(), CREATED, hidden=("gpuclaims", "resourcequotas")).view(CREATED)
    assert [row[6] for row in texts(view.tables[2])] == ["?", "-", "?"]
    assert view.notes == (
        "places in queues are not known, since you may not list gpuclaims, resourcequotas of all namespaces: ask "
        "somebody for a role that lets you",
    )


@pytest.fixture(scope="module")
def reader(page: Page, server: ApiServer) -> Path:
    """The kubeconfig of one who may list all that says who waits where."""
    rules = [
        may("list", "gpupools", "gpuclaims"),
        may("get", "gpuclaims"),
        may("list", "resourcequotas", "events", "pods", group=""),
        may("list", "priorityclasses", group="scheduling.k8s.io"),
    ]
    page.account("top", SYSTEM, *rules, everywhere=True)
    return server.kubeconfig_of(SYSTEM, "top")


def top(kubeconfig: Path, *arguments: str, program: str = REMOTEGPU) -> subprocess.CompletedProcess[str]:
    command = [program, "top", "--once", "--kubeconfig", str(kubeconfig), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, "COLUMNS": "1000"})


def test_the_plugin_shows_the_same_as_the_program(reader: Path) -> None:
    plugin = str(Path(REMOTEGPU).with_name("kubectl-remotegpu"))
    for arguments in ((), ("-n", "team-a")):
        shown = [top(reader, *arguments, program=program) for program in (REMOTEGPU, plugin)]
        assert [(each.returncode, each.stderr) for each in shown] == [(0, "")] * 2
        # But for ages.
        ours, theirs = ([line.rsplit(None, 1)[0] for line in each.stdout.splitlines() if line] for each in shown)
        assert ours == theirs
        assert any(line.startswith("team-a/train") for line in ours)
        assert any(line.startswith("team-b/") for line in ours) == (not arguments)
    bars = [line.split()[4] for line in shown[0].stdout.splitlines() if GPU in line]
    # Team A's quarter, and what the other team has.
    assert bars == ["█████░░░░░··········"]


def test_one_sees_what_one_may_list(of_team_a: str, server: ApiServer) -> None:
    kubeconfig = server.kubeconfig_of("team-a", "member")
    assert of_team_a
    found = json.loads(top(kubeconfig, "-n", "team-a", "--json").stdout)
    assert {each["namespace"] for each in found["claims"].values()} == {"team-a"}
    assert found["pools"] == []
    assert found["hidden"] == ["gpupools", "gpuclaims", "resourcequotas", "priorityclasses"]
    refused = top(kubeconfig, "-n", "team-b")
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (exits.DENIED, "", 1)


def live(kubeconfig: Path, namespace: str, body: Callable[[TopApp, Pilot[None]], Awaitable[None]]) -> None:
    async def run() -> None:
        source = ClusterSource(Cluster(kubeconfig), namespace)
        app = TopApp(source, source.read())
        async with app.run_test(size=(200, 50)) as pilot:
            await body(app, pilot)

    asyncio.run(run())


def test_a_claim_comes_waits_gets_its_share_and_goes(page: Page, reader: Path) -> None:
    async def body(app: TopApp, pilot: Pilot[None]) -> None:
        def phases() -> list[list[str]]:
            return [[row[0], row[4], row[6], row[7]] for row in drawn(app, "claims")]

        assert phases() == []
        page.claim("team-c", "one", fraction="1")
        await seen(pilot, lambda: phases() == [["team-c/one", "Pending", "1", "-"]], "it waits")
        await pilot.press("enter")
        await seen(pilot, lambda: "queue" in said(app, "#story"), "its story")
        story = said(app, "#story")
        assert story.startswith("team-c/one asks for 1 of a GPU from pool default: Pending, NotSeen")
        assert "place 1 of pool default, it is the next" in story
        await pilot.press("escape")
        await seen(pilot, lambda: not said(app, "#story"), "the tables again")
        page.has_share("team-c", "one")
        await seen(pilot, lambda: phases() == [["team-c/one", "Allocated", "-", "1 x Test"]], "its share")
        await pilot.press("enter")
        await seen(pilot, lambda: "condition" in said(app, "#story"), "its story")
        assert "has        256.0 MiB of Test" in said(app, "#story")
        page.kube("DELETE", f"{CLAIMS.format('team-c')}/one")
        await seen(pilot, lambda: not phases(), "it has gone")

    page.kube.namespace("team-c")
    live(reader, "team-c", body)


def test_a_lost_api_server_is_tried_again(page: Page, server: ApiServer, reader: Path, tmp_path: Path) -> None:
    host, _, port = server.url.removeprefix("https://").rpartition(":")
    with FaultProxy(host, int(port)) as proxy:
        through = tmp_path / "kubeconfig"
        through.write_text(reader.read_text().replace(server.url, f"https://127.0.0.1:{proxy.port}"))

        async def body(app: TopApp, pilot: Pilot[None]) -> None:
            before = [row[0] for row in drawn(app, "claims")]
            assert "team-a/train" in before
            proxy.refuse()
            proxy.cut()
            await seen(pilot, lambda: app.query_one("#notes").display, "it is lost")
            assert said(app, "#notes").startswith(f"https://127.0.0.1:{proxy.port} is lost and shown as it was ")
            assert [row[0] for row in drawn(app, "claims")] == before
            proxy.accept()
            await seen(pilot, lambda: not app.query_one("#notes").display, "it is back")

        live(through, "", body)
