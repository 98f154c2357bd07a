"""Tests with a large cluster in a real API server.

The cluster has a thousand nodes with device plugins, and thousands of pods with shares. A restarted operator must
settle soon and use little memory, and must keep up while pods come and go.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import urllib3
from support.apiserver import ApiServer
from support.kubelab import (
    CLAIMS,
    GATE,
    MIB,
    POOLS,
    SYSTEM,
    Kube,
    Object,
    Operator,
    RefusedError,
    all_free,
    gated_pod,
    in_parallel,
    node,
    operator,
    pool,
    ready,
    shares,
)
from support.kubenodes import Nodes
from support.system import until

from remotegpu_operator.cluster.leadership import TRUST_SECONDS

TEAM = "/api/v1/namespaces/team/pods"
MINE = CLAIMS.format("team")
WRITERS = 16
SEED = 20261126
# The number of nodes with GPUs and an appliance. The other nodes have no GPU.
APPLIANCES = 10
GPUS_OF_A_NODE = 50
GPU_MEMORY = 4096 * MIB
MILLI = 100  # ten pods to a GPU
MOST_MEMORY = 512 * MIB
RESTART_SECONDS = 30
CHURN_MINUTES = float(os.environ.get("REMOTEGPU_CHURN_MINUTES", "3"))
CHANGES_PER_SECOND = 20
# The longest time without an answer of the API server on a busy machine.
AWAY_SECONDS = 300


@dataclass(frozen=True)
class Size:
    nodes: int
    pods: int


SMALL, LARGE = Size(50, 100), Size(1000, 5000)


def some_node(number: int) -> Object:
    """Builds a node as a kubelet writes it, with a list of images that makes it large."""
    gpus = {"gpus": "true"} if number < APPLIANCES else {}
    room = {"cpu": "8", "memory": "32Gi", "pods": "110", "remotegpu/milli": "16000", "remotegpu/client": "1000"}
    images = [{"names": [f"registry.example.com/image-{i}@sha256:{i:064}"], "sizeBytes": i << 20} for i in range(50)]
    status = {"capacity": room, "allocatable": room, "images": images}
    return {**node(f"node-{number:04}", gpus), "status": status}


def plugin(number: int) -> Object:
    labels = {"app.kubernetes.io/name": "remotegpu", "app.kubernetes.io/component": "deviceplugin"}
    spec = {"nodeName": f"node-{number:04}", "containers": [{"name": "plugin", "image": "none"}]}
    return {"metadata": {"name": f"plugin-{number:04}", "labels": labels}, "spec": spec}


def make_nodes(kube: Kube, size: Size) -> None:
    plugins = f"/api/v1/namespaces/{SYSTEM}/pods"

    def make(number: int) -> None:
        kube("POST", "/api/v1/nodes", some_node(number))
        kube("POST", plugins, plugin(number))
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        kube.merge(f"{plugins}/plugin-{number:04}/status", {"status": ready})

    in_parallel(make, range(size.nodes))
    where = {"nodeSelector": {"gpus": "true"}, "software": {"gpus": GPUS_OF_A_NODE, "memory": GPU_MEMORY}}
    kube("POST", POOLS, pool("default", **where))


def start(kube: Kube, number: int) -> None:
    kube("POST", TEAM, gated_pod(f"p{number}", "default", MILLI))


def finish(kube: Kube, number: int, phase: str) -> None:
    kube.merge(f"{TEAM}/p{number}/status", {"status": {"phase": phase}})


def end(kube: Kube, number: int) -> None:
    kube("DELETE", f"{TEAM}/p{number}", {"gracePeriodSeconds": 0})


def gated(kube: Kube) -> set[int]:
    """Returns the numbers of the pods that still have our gate."""
    return {
        int(each["metadata"]["name"][1:])
        for each in kube.items(TEAM)
        if {"name": GATE} in (each["spec"].get("schedulingGates") or [])
    }


def holders(kube: Kube) -> set[int]:
    """Returns the numbers of the pods whose claim has a share."""
    held = (each for each in kube.items(MINE) if (each.get("status") or {}).get("phase") == "Allocated")
    return {int(each["spec"]["pod"]["name"][1:]) for each in held}


def never_too_much(kube: Kube) -> None:
    over = {gpu: memory for gpu, memory in shares(kube).items() if memory > GPU_MEMORY}
    assert not over, over


def all_have(kube: Kube, pods: set[int]) -> bool:
    """Whether exactly these pods have a share, and no pod is gated. Lists the claims last, because they are many."""
    return not gated(kube) and holders(kube) == pods


@pytest.mark.parametrize(
    "size", [SMALL, pytest.param(LARGE, marks=[pytest.mark.thorough, pytest.mark.timeout(1200)])], ids=str
)
def test_an_operator_that_starts_anew_settles_soon(server: ApiServer, kube: Kube, folder: Path, size: Size) -> None:
    """The operator is killed, and pods are created and deleted before its restart."""
    kube.namespace("team")
    make_nodes(kube, size)
    with operator(server.kubeconfig, folder) as running, Nodes(kube, subnet=14):
        ready(kube, APPLIANCES)
        began = time.monotonic()
        in_parallel(lambda number: start(kube, number), range(size.pods))

        def placed_all() -> bool:
            assert running.process.poll() is None, running.log
            return all_have(kube, set(range(size.pods)))

        until(placed_all, 600, "every pod has its share")
        placed = time.monotonic() - began
        never_too_much(kube)
        full = running.memory()
        assert full < MOST_MEMORY

        running.kill()
        change = size.pods // 20
        in_parallel(lambda number: end(kube, number), range(change))
        in_parallel(lambda number: start(kube, number), range(size.pods, size.pods + change))
        began = time.monotonic()
        running.restart()
        until(lambda: all_have(kube, set(range(change, size.pods + change))), RESTART_SECONDS, "it has settled")
        settled = time.monotonic() - began
        until(lambda: len(kube.items(MINE)) == size.pods, 20, "no claim of a pod that went is left")
        never_too_much(kube)
        assert running.memory() < MOST_MEMORY
        print(
            f"{size.pods} pods and {size.nodes} nodes: placed in {placed:.1f} s, after its start anew settled in "
            f"{settled:.1f} s with {change} pods gone and {change} new; {full / MIB:.0f} and "
            f"{running.memory() / MIB:.0f} MiB"
        )


class Patient(Kube):
    """A client that repeats each call until the API server answers, for at most five minutes."""

    def __call__(self, method: str, path: str, body: Object | None = None, kind: str = "application/json") -> Object:
        asked_before, until_then = False, time.monotonic() + AWAY_SECONDS
        while True:
            try:
                return super().__call__(method, path, body, kind)
            except urllib3.exceptions.HTTPError:
                asked_before = True
                if time.monotonic() > until_then:
                    raise
            except RefusedError as error:
                # The first call was executed, and only its answer was lost.
                if asked_before and (method, error.status) in {("POST", 409), ("DELETE", 404)}:
                    return {}
                raise


class Churn:
    """Creates, starts, ends and deletes pods at a steady rate, in a random order from a seed."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._chance = random.Random(SEED)
        self._numbers = itertools.count()
        # The last requested change of each pod.
        self._asked: dict[int, Future[None]] = {}
        self.live: list[int] = []
        self.ended: list[int] = []
        self.changes = 0

    def run(self, seconds: float, look: Callable[[], None]) -> None:
        """Runs for `seconds`, and calls `look` about every five seconds."""
        began = time.monotonic()
        next_look = began
        with ThreadPoolExecutor(WRITERS) as writers:
            looking = writers.submit(look)
            while (now := time.monotonic()) < began + seconds:
                if looking.done():
                    looking.result()
                    if now >= next_look:
                        looking, next_look = writers.submit(look), now + 5
                self._step(writers)
                self.changes += 1
                time.sleep(max(0.0, began + self.changes / CHANGES_PER_SECOND - time.monotonic()))
            looking.result()
        for asked in self._asked.values():
            asked.result()
        # The rate counts until the last request is done.
        self.rate = self.changes / (time.monotonic() - began)

    def _step(self, writers: ThreadPoolExecutor) -> None:
        kind = self._chance.choices(["come", "end", "go"], [5 if len(self.live) < 300 else 2, 2, 2])[0]
        if kind == "come" or not self.live:
            self.live.append(next(self._numbers))
            self._ask(writers, self.live[-1], start)
        elif kind == "end" or not self.ended:
            self.ended.append(self._take(self.live))
            phase = self._chance.choice(["Succeeded", "Failed"])
            self._ask(writers, self.ended[-1], functools.partial(finish, phase=phase))
        else:
            self._ask(writers, self._take(self.ended), end)

    def _ask(self, writers: ThreadPoolExecutor, number: int, change: Callable[[Kube, int], None]) -> None:
        """Queues a change of a pod after the pod's earlier changes, and does not wait for it."""
        before = self._asked.pop(number, None)

        def do() -> None:
            if before is not None:
                before.result()
            change(self._kube, number)

        self._asked[number] = writers.submit(do)

    def _take(self, among: list[int]) -> int:
        """Every other time the oldest one: nothing starts these pods, so that their claims expire after 300 s."""
        return among.pop(self._chance.choice([0, self._chance.randrange(len(among))]))


class Supervised:
    """Restarts the operator when it ends, as a kubelet does. The only allowed reason is the loss of the Lease.

    Also checks that the allocations of a claim never change.
    """

    def __init__(self, running: Operator, kube: Kube) -> None:
        self._running = running
        self._kube = kube
        self._given: dict[str, object] = {}
        self.losses = 0
        # Samples of the resident memory of the present process, in bytes.
        self.memory: list[int] = []

    def look(self) -> int:
        """Checks and restarts the operator. Returns how often the operator has lost the Lease."""
        if (code := self._running.process.poll()) is not None:
            self.losses += 1
            assert (code, self._running.log.count("the Lease was lost")) == (1, self.losses), self._running.log[-3000:]
            self._running.restart()
            self.memory.clear()
        with contextlib.suppress(StopIteration):  # The process may end at this moment.
            self.memory.append(self._running.memory())
        for each in self._kube.items(MINE):
            if allocations := (each.get("status") or {}).get("allocations"):
                assert self._given.setdefault(each["metadata"]["uid"], allocations) == allocations
        return self.losses

    def leads(self) -> bool:
        """Whether an operator leads; looks first."""
        self.look()
        return self._running.leads()


@contextlib.contextmanager
def away(server: ApiServer, after: float, seconds: float) -> Iterator[None]:
    """Stops the API server for `seconds`, `after` seconds from now, as on an overloaded machine."""

    def stand_still() -> None:
        os.kill(server.pid, signal.SIGSTOP)
        try:
            ended.wait(seconds)
        finally:
            os.kill(server.pid, signal.SIGCONT)

    ended = threading.Event()
    timer = threading.Timer(after, stand_still)
    if seconds:
        timer.start()
    try:
        yield
    finally:
        ended.set()
        timer.cancel()
        if seconds:
            timer.join()


@pytest.mark.parametrize(
    ("seconds", "stalled"),
    [
        pytest.param(10.0, 0.0, id="10-seconds"),
        # A time longer than the leader trusts the Lease.
        pytest.param(20.0, TRUST_SECONDS + 3, id="api-server-away"),
        pytest.param(60 * CHURN_MINUTES, 0.0, marks=[pytest.mark.thorough, pytest.mark.timeout(0)], id="minutes"),
    ],
)
def test_pods_come_and_go_twenty_times_a_second(
    server: ApiServer, kube: Kube, folder: Path, seconds: float, stalled: float
) -> None:
    """The longest case runs for REMOTEGPU_CHURN_MINUTES minutes: set 30 for a full test."""
    kube.namespace("team")
    make_nodes(kube, Size(APPLIANCES, 0))
    with operator(server.kubeconfig, folder) as running, Nodes(kube, subnet=15):
        ready(kube, APPLIANCES)
        kube = Patient(server.kubeconfig)
        supervised = Supervised(running, kube)
        waiting: list[int] = []

        def look() -> None:
            never_too_much(kube)
            supervised.look()
            waiting.append(len(gated(kube) & set(churn.live)))

        churn = Churn(kube)
        with away(server, seconds / 4, stalled):
            churn.run(seconds, look)
        if stalled:
            until(lambda: supervised.look() > 0, 30, "the operator ends, since its Lease is lost")
        else:
            assert churn.rate > CHANGES_PER_SECOND * 0.8, f"this machine made {churn.rate:.1f} changes a second"
        # The operator keeps up: the youngest pods soon lose their gate, and no ended pod has a share.
        until(lambda: supervised.leads() and all_have_churned(kube, churn), 60, "what lives has a share, and no other")
        never_too_much(kube)
        supervised.look()
        # The memory does not grow in the second half of the time.
        memory = supervised.memory
        assert supervised.losses or memory[-1] - memory[len(memory) // 2] < 16 * MIB, [one // MIB for one in memory]
        left = [*churn.live, *churn.ended]
        in_parallel(lambda number: end(kube, number), left)
        until(lambda: not kube.items(MINE), 30, "no claim is left")
        until(lambda: all_free(kube), 30, "all is free")
        print(
            f"{churn.changes} changes, {churn.rate:.1f} a second: at most {max(waiting)} pods waited at a time; MiB "
            f"{memory[0] // MIB} first, {memory[len(memory) // 2] // MIB} in the middle, {memory[-1] // MIB} last; "
            f"{running.cpu_seconds() / seconds:.2f} CPUs; the Lease was lost {supervised.losses} times"
        )


def all_have_churned(kube: Kube, churn: Churn) -> bool:
    return holders(kube) == set(churn.live) and not gated(kube) & set(churn.live)
