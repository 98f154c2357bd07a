"""Tests of watches that end with an error.

The API server says that the version of a watch is too old (410): kopf lists the objects again, and does not report
those that were deleted before. Other errors end the watch or the process.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.apiserver import ApiServer
from support.kubelab import (
    CLAIMS,
    MIB,
    POOLS,
    SYSTEM,
    Kube,
    Operator,
    all_free,
    gated_pod,
    in_parallel,
    node,
    operator,
    pool,
    ready,
)
from support.kubenodes import Nodes
from support.system import Watch, until
from support.watchgap import watch_gap

TEAM = "/api/v1/namespaces/team/pods"
WATCHED = "/api/v1/pods"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/remotegpu-operator"
GPUS = 8


@pytest.mark.parametrize("left", [GPUS // 2, 0], ids=lambda left: f"{left}-left")
def test_pods_deleted_in_a_gap_of_the_watch_free_their_shares_within_60_seconds(
    server: ApiServer, kube: Kube, folder: Path, left: int
) -> None:
    """Each pod has a GPU. Later pods need the GPUs of those that are deleted in the gap."""

    def make(numbers: range) -> None:
        in_parallel(lambda number: kube("POST", TEAM, gated_pod(f"p{number:02}", "default", 1000)), numbers)

    def allocated() -> int:
        claims = kube.items(CLAIMS.format("team"))
        return sum((each.get("status") or {}).get("phase") == "Allocated" for each in claims)

    kube.namespace("team")
    kube("POST", "/api/v1/nodes", node("node-a"))
    kube("POST", POOLS, pool("default", software={"gpus": GPUS, "memory": 1024 * MIB}))
    with (
        watch_gap(server.kubeconfig, folder) as gap,
        operator(gap.kubeconfig, folder) as running,
        Nodes(kube, subnet=16),
    ):
        ready(kube, 1)
        make(range(GPUS))
        until(lambda: allocated() == GPUS, 30, "every pod has a GPU")
        until(lambda: not all_free(kube), 30, "the pool says so")
        gap.begin(WATCHED)
        until(lambda: gap.waiting[WATCHED], 30, "the operator wants to watch further")
        in_parallel(lambda number: kube("DELETE", f"{TEAM}/p{number:02}", {"gracePeriodSeconds": 0}), range(left, GPUS))
        gap.end(WATCHED)
        paused = Watch()
        until(lambda: allocated() == left, 90, "the claims of the deleted pods are gone")
        if left:
            make(range(GPUS, 2 * GPUS - left))
            until(lambda: allocated() == GPUS, 30, "the other pods have the GPUs")
        else:
            until(lambda: all_free(kube), 30, "all is free")
        assert paused.within(62)
        assert running.process.poll() is None


def test_one_refusal_of_the_access_is_survived(server: ApiServer, kube: Kube, folder: Path) -> None:
    """An API server refuses also a valid token with 401, if it cannot look the account up."""
    kube.namespace("team")
    with watch_gap(server.kubeconfig, folder) as gap, operator(gap.kubeconfig, folder) as running:
        for name in ("first", "second"):
            kube("POST", TEAM, gated_pod(name, "default", 1000))
            until(lambda name=name: f"/{name}-" in claims_of(kube), 30, f"{name} has a claim")  # type: ignore[misc]
            gap.begin(WATCHED)
            until(lambda: gap.waiting.pop(WATCHED, 0), 30, "the operator wants to watch further")
            gap.end(WATCHED, 401, status=401)
        kube("POST", TEAM, gated_pod("third", "default", 1000))
        until(lambda: "/third-" in claims_of(kube), 30, "the watch goes on")
        assert running.process.poll() is None
        assert running.log.count("refuses its access (401)") == 2
        assert "Request attempt" not in running.log


def claims_of(kube: Kube) -> str:
    return " ".join(f"/{each['metadata']['name']}-" for each in kube.items(CLAIMS.format("team")))


def test_an_error_that_kopf_does_not_survive_ends_the_process_which_gives_the_lease_back(
    server: ApiServer, kube: Kube, folder: Path
) -> None:
    with watch_gap(server.kubeconfig, folder) as gap:
        running = Operator(gap.kubeconfig, folder, "operator-0")
        try:
            until(running.leads, 30, "the operator leads")
            gap.begin(WATCHED)
            until(lambda: gap.waiting[WATCHED], 30, "the operator wants to watch")
            gap.end(WATCHED, 500)
            assert running.process.wait(20) == 1, running.log
            assert "Error in the watch-stream" in running.log
            assert kube.get(LEASE)["spec"]["holderIdentity"] == ""
        finally:
            if running.process.poll() is None:
                running.stop()
