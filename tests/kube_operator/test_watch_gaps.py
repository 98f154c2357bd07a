"""Tests of deletions that no watch reports: the API server says that the version of a watch is too old (410).

After that, kopf lists the objects again and does not report those that are gone.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.apiserver import ApiServer
from support.kubelab import CLAIMS, MIB, POOLS, Kube, all_free, gated_pod, in_parallel, node, operator, pool, ready
from support.kubenodes import Nodes
from support.system import Watch, until
from support.watchgap import watch_gap

TEAM = "/api/v1/namespaces/team/pods"
WATCHED = "/api/v1/pods"
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
