"""Pods per second: 500 from 32 writers through two replicas of the webhook over TLS, and the same without it.

An API server and etcd alone, both replicas and the writers, all on this machine's cores. Without the webhook the
writers send what it would have made of the pods, so that the same is stored. The handler's times are from its own
histogram.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

ROOT: Final = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "e2e")]

from support.apiserver import api_server  # noqa: E402 (the path comes first)
from support.kubelab import Kube, RefusedError  # noqa: E402
from support.system import until  # noqa: E402
from support.webhook import Admission, Replica, issue, pod, replica  # noqa: E402

from remotegpu.api.kubernetes import FRACTION, GATE, MILLI  # noqa: E402

PODS: Final = 500
WRITERS: Final = 32
ROUNDS: Final = 3
SECONDS: Final = 30


@dataclass(frozen=True)
class Result:
    server: str
    cores: int
    pods: int
    writers: int
    rounds: int
    without_per_second: float
    with_per_second: float
    ratio: float
    others_before_per_second: float
    others_beside_per_second: float
    others_ratio: float
    handler_p50_ms: float
    handler_p99_ms: float
    requests_per_replica: list[int]
    webhook_cpu_ms_per_pod: float
    # Requests of the API server, without and with the webhook.
    server_cpu_ms_per_pod: list[float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--server", default="1.34", choices=["1.34", "newest"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, api_server(options.server) as server:
        certificates = Path(folder)
        authority = issue(certificates)
        with (
            replica(certificates, "--reuse-port") as one,
            replica(certificates, "--reuse-port", port=one.port) as other,
        ):
            result = measure(Admission(server, one, authority), [one, other])
    print(table(result))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(asdict(result), indent=2) + "\n")


def measure(
    admission: Admission, replicas: list[Replica], pods: int = PODS, writers: int = WRITERS, rounds: int = ROUNDS
) -> Result:
    server = admission.server
    kube = Kube(server.kubeconfig, connections=writers)
    asking = pod("pod", {FRACTION: "0.25"})
    stranger = pod("pod", {"cpu": "1"})
    admission.install()
    rewritten = _dry_run(kube, asking)
    for kind in ("validatingadmissionpolicybinding", "validatingadmissionpolicy", "mutatingwebhookconfiguration"):
        server.kubectl("delete", kind, "remotegpu")
    until(lambda: _let_alone(kube), SECONDS, "nobody looks at pods with a share")

    create = _Creation(kube, pods, writers)
    create.per_second(stranger)  # connections are made, and nothing is measured
    cpu = [_cpu_seconds([server.pid])]
    without = [create.per_second(rewritten, held=True) for _ in range(rounds)]
    cpu.append(_cpu_seconds([server.pid]))
    others_before = [create.per_second(stranger) for _ in range(rounds)]
    admission.install()
    create.per_second(asking, held=True)
    pids, counted = [each.process.pid for each in replicas], [_handled(each) for each in replicas]
    cpu += [_cpu_seconds(pids), _cpu_seconds([server.pid])]
    through = [create.per_second(asking, held=True) for _ in range(rounds)]
    cpu += [_cpu_seconds(pids), _cpu_seconds([server.pid])]
    handled = [_handled(each) - before for each, before in zip(replicas, counted, strict=True)]
    others_beside = [create.per_second(stranger) for _ in range(rounds)]
    create.check()

    total = sum(handled, Counter())
    assert total[math.inf] == rounds * pods, "every pod went through the webhook once"
    figures = [statistics.median(rates) for rates in (without, through, others_before, others_beside)]
    return Result(
        server=server.version,
        cores=len(os.sched_getaffinity(0)),
        pods=pods,
        writers=writers,
        rounds=rounds,
        without_per_second=round(figures[0], 1),
        with_per_second=round(figures[1], 1),
        ratio=round(figures[1] / figures[0], 2),
        others_before_per_second=round(figures[2], 1),
        others_beside_per_second=round(figures[3], 1),
        others_ratio=round(figures[3] / figures[2], 2),
        handler_p50_ms=round(_quantile(total, 0.5) * 1000, 2),
        handler_p99_ms=round(_quantile(total, 0.99) * 1000, 2),
        requests_per_replica=[counts[math.inf] for counts in handled],
        webhook_cpu_ms_per_pod=round((cpu[4] - cpu[2]) / (rounds * pods) * 1000, 2),
        server_cpu_ms_per_pod=[
            round((after - before) / (rounds * pods) * 1000, 2)
            for before, after in ((cpu[0], cpu[1]), (cpu[3], cpu[5]))
        ],
    )


class _Creation:
    """Creates pods, each round in a namespace of its own."""

    def __init__(self, kube: Kube, pods: int, writers: int) -> None:
        self._kube = kube
        self._pods = pods
        self._writers = writers
        # For each round, whether its pods are held.
        self._rounds: list[bool] = []

    def per_second(self, document: dict[str, Any], *, held: bool = False) -> float:
        self._rounds.append(held)
        namespace = f"round-{len(self._rounds)}"
        self._kube.namespace(namespace)

        def create(number: int) -> None:
            named = {**document, "metadata": {**document["metadata"], "name": f"pod-{number:03}"}}
            self._kube("POST", f"/api/v1/namespaces/{namespace}/pods", named)

        started = time.monotonic()
        with ThreadPoolExecutor(self._writers) as writers:
            list(writers.map(create, range(self._pods)))
        return self._pods / (time.monotonic() - started)

    def check(self) -> None:
        """Checks that every pod of a round exists, and is gated where it must be. Knows nothing of the webhook."""
        for number, expected in enumerate(self._rounds, 1):
            pods = self._kube.items(f"/api/v1/namespaces/round-{number}/pods")
            held = Counter({"name": GATE} in each["spec"].get("schedulingGates", []) for each in pods)
            assert held == {expected: self._pods}, f"round {number}: {held}"


def _dry_run(kube: Kube, document: dict[str, Any]) -> dict[str, Any]:
    """Returns the pod that the API server would store, as a document to create again."""
    stored = kube("POST", "/api/v1/namespaces/default/pods?dryRun=All", document)
    return document | {
        "metadata": {"name": "pod", "labels": stored["metadata"].get("labels", {})},
        "spec": stored["spec"],
    }


def _let_alone(kube: Kube) -> bool:
    """Whether neither webhook nor policy changes a pod."""
    try:
        return "schedulingGates" not in _dry_run(kube, pod("pod", {MILLI: 250}))["spec"]
    except RefusedError:
        return False


def _handled(each: Replica) -> Counter[float]:
    """Returns how many requests for pods were answered within each of the histogram's bounds."""
    found: Counter[float] = Counter()
    for family in text_string_to_metric_families(each.get("/metrics")[1]):
        for sample in family.samples:
            if sample.name == "remotegpu_webhook_seconds_bucket" and sample.labels["path"] == "/mutate-pods":
                found[float(sample.labels["le"])] += int(sample.value)
    return found


def _quantile(counts: Counter[float], part: float) -> float:
    """Estimates a quantile like Prometheus' histogram_quantile: values are evenly spread within a bucket."""
    rank, lower, below = part * counts[math.inf], 0.0, 0
    for bound in sorted(counts):
        if counts[bound] >= rank:
            inside = counts[bound] - below
            return lower if bound == math.inf else lower + (bound - lower) * (rank - below) / inside
        lower, below = bound, counts[bound]
    return lower


def _cpu_seconds(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def table(result: Result) -> str:
    rows = (
        ("pods per second with the webhook", f"{result.with_per_second}"),
        ("the same stored without it", f"{result.without_per_second} (ratio {result.ratio})"),
        ("handler, p50 and p99", f"{result.handler_p50_ms} ms, {result.handler_p99_ms} ms"),
        ("the webhook's CPU time per pod", f"{result.webhook_cpu_ms_per_pod} ms"),
        ("the API server's CPU time per pod, without and with", f"{result.server_cpu_ms_per_pod} ms"),
        ("requests at each replica", ", ".join(map(str, result.requests_per_replica))),
        (
            "others' pods per second beside it, and before",
            f"{result.others_beside_per_second}, {result.others_before_per_second} (ratio {result.others_ratio})",
        ),
    )
    machine = f"Kubernetes {result.server}, {result.cores} cores for everything"
    head = f"{machine}, {result.pods} pods from {result.writers} writers, median of {result.rounds} rounds"
    return "\n".join([head, "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


if __name__ == "__main__":
    main()
