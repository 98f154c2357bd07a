"""Tests with thousands of claims and a real API server: each claim gets a share, or a reason why it waits.

The test computes the sums itself from the API server's objects. After the deletion of all claims all GPUs are free, and
the operator has released its memory.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.apiserver import ApiServer
from support.kubelab import (
    CLAIMS,
    MIB,
    POOLS,
    Kube,
    Operator,
    all_free,
    claim,
    in_parallel,
    node,
    operator,
    pool,
    pool_status,
    ready,
)
from support.kubenodes import Nodes
from support.system import until

MINE = CLAIMS.format("team")
WRITERS = 32
SEED = 20261126
# The fraction by which the number of claims exceeds the capacity.
TOO_MANY = 0.02
CLAIM_BYTES = 80 * MIB
CLAIMS_OF_A_GPU = 50
GPUS_OF_A_NODE = 20
# The memory that the operator may keep after all claims are gone: the uids of recently deleted claims, and parts of its
# heap, which later claims use again. In rounds of 1,000 claims it grew by 20 MiB in the first round and by 0.9 MiB in
# each later one.
MOST_KEPT, MOST_KEPT_OF_A_CLAIM = 64 * MIB, 16 << 10


def phases(kube: Kube) -> Counter[str]:
    """Counts the claims by phase and reason. Also checks that no GPU is allocated beyond its memory."""
    given: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for each in kube.items(MINE):
        status = each["status"]
        found[f"{status['phase']} {status['reason']}"] += 1
        for allocation in status.get("allocations", []):
            given[allocation["gpu"]] += allocation["memory"]
    over = {gpu: memory for gpu, memory in given.items() if memory > CLAIMS_OF_A_GPU * CLAIM_BYTES}
    assert not over, over
    return found


def secrets(kube: Kube) -> dict[str, tuple[str, str]]:
    """Returns the uid and content of every Secret, by namespace and name."""
    return {
        f"{each['metadata']['namespace']}/{each['metadata']['name']}": (each["metadata"]["uid"], str(each.get("data")))
        for each in kube.items("/api/v1/secrets")
    }


def descriptors(running: Operator) -> int:
    return sum(1 for _ in Path(f"/proc/{running.process.pid}/fd").iterdir())


@pytest.mark.parametrize(
    ("count", "seconds"),
    [
        pytest.param(200, 60, id="200"),
        pytest.param(1000, 60, marks=[pytest.mark.thorough, pytest.mark.timeout(600)], id="1000"),
        pytest.param(10_000, 600, marks=[pytest.mark.thorough, pytest.mark.timeout(1800)], id="10000"),
    ],
)
def test_all_are_placed_and_all_comes_back(
    server: ApiServer, kube: Kube, folder: Path, count: int, seconds: float
) -> None:
    kube.namespace("team")
    nodes = max(1, count // (CLAIMS_OF_A_GPU * GPUS_OF_A_NODE))
    gpus = count // CLAIMS_OF_A_GPU // nodes
    assert nodes * gpus * CLAIMS_OF_A_GPU == count
    for number in range(nodes):
        kube("POST", "/api/v1/nodes", node(f"node-{number}"))
    kube("POST", POOLS, pool("default", software={"gpus": gpus, "memory": CLAIMS_OF_A_GPU * CLAIM_BYTES}))
    more = int(count * TOO_MANY)
    names = [f"claim-{number:05}" for number in range(count + more)]
    random.Random(SEED).shuffle(names)
    with operator(server.kubeconfig, folder) as running, Nodes(kube, subnet=13):
        ready(kube, nodes)
        # The first claim makes the operator create the objects that exist only once.
        kube("POST", MINE, claim("first", "default", memory=str(CLAIM_BYTES)))
        until(lambda: phases(kube)["Allocated Allocated"] == 1, 20, "the first claim has a share")
        kube("DELETE", f"{MINE}/first")
        until(lambda: all_free(kube), 30, "all is free")
        before = pool_status(kube), secrets(kube), descriptors(running)
        memory = running.memory()

        began = time.monotonic()
        with ThreadPoolExecutor(1) as writer:
            create = lambda name: kube("POST", MINE, claim(name, "default", memory=str(CLAIM_BYTES)))  # noqa: E731
            writing = writer.submit(in_parallel, create, names, WRITERS)
            wanted = Counter({"Allocated Allocated": count, "Pending WaitingForCapacity": more})

            def settled() -> bool:
                assert running.process.poll() is None, running.log
                return phases(kube) == wanted

            until(settled, seconds, f"{count} have a share and {more} say what they wait for")
            placed = time.monotonic() - began
            writing.result()
        full = running.memory()
        # Waiting claims get the shares of deleted claims.
        happy = [each["metadata"]["name"] for each in kube.items(MINE) if each["status"]["phase"] == "Allocated"]
        leaving = random.Random(SEED).sample(sorted(happy), more)
        in_parallel(lambda name: kube("DELETE", f"{MINE}/{name}"), leaving, WRITERS)
        until(lambda: phases(kube) == Counter({"Allocated Allocated": count}), 60, "those who waited have a share")

        began = time.monotonic()
        in_parallel(lambda name: kube("DELETE", f"{MINE}/{name}"), sorted(set(names) - set(leaving)), WRITERS)
        until(lambda: not kube.items(MINE), 60, "no claim is left")
        until(lambda: all_free(kube), 60, "all is free")
        gone = time.monotonic() - began
        until(lambda: descriptors(running) <= before[2], 60, "the operator's connections are closed again")
        assert (pool_status(kube), secrets(kube)) == before[:2]
        assert running.memory() - memory < MOST_KEPT + count * MOST_KEPT_OF_A_CLAIM
        print(
            f"{count} of {count + more} claims placed in {placed:.1f} s, all back {gone:.1f} s after the first "
            f"deletion; descriptors {before[2]} and {descriptors(running)}, MiB before, full, after: "
            f"{memory / MIB:.1f} {full / MIB:.1f} {running.memory() / MIB:.1f}"
        )
