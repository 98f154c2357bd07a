"""Claims per second: 1,000 claims from 32 writers for a pool of simulated appliances that fits exactly 600 of them.

An API server and etcd alone, one operator, ten appliances that answer over TLS, all on this machine's cores. The sums
are checked by a reader that knows nothing of the operator: it lists the claims and adds up.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "e2e")]

from support.apiserver import ApiServer, api_server  # noqa: E402 (the path comes first)
from support.kubelab import CLAIMS, POOLS, SYSTEM, Kube, Operator, claim, node, operator, pool, serve_crds  # noqa: E402
from support.kubenodes import Nodes  # noqa: E402
from support.system import until  # noqa: E402

CLAIMS_ASKED: Final = 1000
CLAIMS_THAT_FIT: Final = 600
WRITERS: Final = 32
NODES: Final = 10
GPUS_PER_NODE: Final = 15
GPU_MEMORY: Final = 8 << 30
TOKEN: Final = "the operator's token"
NAMESPACE: Final = "bench"
SECONDS: Final = 120


@dataclass(frozen=True)
class Result:
    server: str
    cores: int
    claims: int
    fit: int
    seconds_to_create: float
    seconds_to_settle: float
    claims_per_second: float
    seconds_to_rebind: float
    rebinds_per_second: float
    calls_per_claim: float
    calls_per_rebind: float
    calls: dict[str, int]
    operator_cpu_seconds: float
    operator_memory_before_mib: float
    operator_memory_after_mib: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--server", default="1.34", choices=["1.34", "newest"])
    options = parser.parse_args()
    with api_server(options.server) as server, tempfile.TemporaryDirectory() as folder:
        result = measure(server, Path(folder))
    print(table(result))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(asdict(result), indent=2) + "\n")


def measure(server: ApiServer, folder: Path) -> Result:
    serve_crds(server)
    kube = Kube(server.kubeconfig)
    for namespace in (SYSTEM, NAMESPACE):
        kube.namespace(namespace)
    for number in range(NODES):
        kube("POST", "/api/v1/nodes", node(f"node-{number}"))
    with operator(server.kubeconfig, folder) as running, Nodes(kube, subnet=9):
        kube("POST", POOLS, pool("bench", software={"gpus": GPUS_PER_NODE, "memory": GPU_MEMORY}))
        until(lambda: _pool_is_ready(kube), SECONDS, "all appliances are ready")
        return _rounds(server, kube, running)


def _rounds(server: ApiServer, kube: Kube, running: Operator) -> Result:
    path = CLAIMS.format(NAMESPACE)
    memory, before, cpu = running.memory(), calls(kube), running.cpu_seconds()
    started = time.monotonic()
    _all(lambda number: kube("POST", path, claim(f"claim-{number:04}", "bench", fraction="0.25")), range(CLAIMS_ASKED))
    created = time.monotonic() - started
    until(lambda: _settled(kube, CLAIMS_THAT_FIT, CLAIMS_ASKED - CLAIMS_THAT_FIT), SECONDS, "600 bound, 400 waiting")
    settled = time.monotonic() - started
    until(lambda: events(kube) == CLAIMS_ASKED, SECONDS, "every claim has its Event")
    between, cpu = calls(kube), running.cpu_seconds() - cpu

    names = [each["metadata"]["name"] for each in kube.items(path) if each["status"]["phase"] == "Allocated"]
    deleting = time.monotonic()
    _all(lambda number: kube("DELETE", f"{path}/{names[number]}"), range(len(names)))
    until(lambda: _settled(kube, CLAIMS_ASKED - CLAIMS_THAT_FIT, 0), SECONDS, "the 400 bound")
    rebound = time.monotonic() - deleting
    until(lambda: events(kube) == CLAIMS_ASKED + CLAIMS_ASKED - CLAIMS_THAT_FIT, SECONDS, "the 400 have their Events")
    after = calls(kube)
    assert running.process.poll() is None
    first = _of_the_operator(between - before)
    second = _of_the_operator(after - between)
    waiting = CLAIMS_ASKED - CLAIMS_THAT_FIT
    return Result(
        server=server.version,
        cores=len(os.sched_getaffinity(0)),
        claims=CLAIMS_ASKED,
        fit=CLAIMS_THAT_FIT,
        seconds_to_create=round(created, 2),
        seconds_to_settle=round(settled, 2),
        claims_per_second=round(CLAIMS_ASKED / settled, 1),
        seconds_to_rebind=round(rebound, 2),
        rebinds_per_second=round(waiting / rebound, 1),
        calls_per_claim=round(first.total() / CLAIMS_ASKED, 3),
        calls_per_rebind=round(second.total() / waiting, 3),
        calls=dict(sorted((first + second).items())),
        operator_cpu_seconds=round(cpu, 2),
        operator_memory_before_mib=round(memory / (1 << 20), 1),
        operator_memory_after_mib=round(running.memory() / (1 << 20), 1),
    )


def _all(work: Any, numbers: range) -> None:
    with ThreadPoolExecutor(WRITERS) as writers:
        list(writers.map(work, numbers))


def _pool_is_ready(kube: Kube) -> bool:
    status = kube.get(f"{POOLS}/bench").get("status") or {}
    return status.get("phase") == "Ready" and status["gpus"] == NODES * GPUS_PER_NODE


def _settled(kube: Kube, allocated: int, waiting: int) -> bool:
    """Whether exactly `allocated` claims have a share and `waiting` claims wait for capacity.

    Fails if any GPU has given away more memory than it has.
    """
    found = kube.items(CLAIMS.format(NAMESPACE))
    given: Counter[str] = Counter()
    phases: Counter[str] = Counter()
    for each in found:
        status = each["status"]
        phases[f"{status['phase']} {status['reason']}"] += 1
        for allocation in status.get("allocations", []):
            given[allocation["gpu"]] += allocation["memory"]
    assert all(memory <= GPU_MEMORY for memory in given.values()), given.most_common(1)
    return phases["Allocated Allocated"] == allocated and phases["Pending WaitingForCapacity"] == waiting


def events(kube: Kube) -> int:
    return len(kube.items(f"/api/v1/namespaces/{NAMESPACE}/events"))


def calls(kube: Kube) -> Counter[str]:
    """Returns how often the API server was called, by verb and resource, by its own count."""
    found: Counter[str] = Counter()
    for line in kube.text("/metrics").splitlines():
        if line.startswith("apiserver_request_total{"):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
            resource = "/".join(part for part in (labels["resource"], labels.get("subresource", "")) if part)
            found[f"{labels['verb']} {resource}"] += int(float(line.rsplit(" ", 1)[1]))
    return found


def _of_the_operator(counted: Counter[str]) -> Counter[str]:
    """Calls that only the operator makes for claims: the writers make and delete them, the reader lists."""
    return Counter(
        {key: counted[key] for key in ("PATCH gpuclaims/status", "POST events", "GET gpuclaims") if counted[key]}
    )


def table(result: Result) -> str:
    rows = (
        ("claims / that fit", f"{result.claims} / {result.fit}"),
        ("until 600 are bound and 400 wait with a reason", f"{result.seconds_to_settle} s"),
        ("claims per second", f"{result.claims_per_second}"),
        ("600 deleted, until the 400 are bound", f"{result.seconds_to_rebind} s"),
        ("API calls per claim (status and Event)", f"{result.calls_per_claim}"),
        ("API calls per claim that was waiting", f"{result.calls_per_rebind}"),
        ("operator's CPU time for the first 1,000", f"{result.operator_cpu_seconds} s"),
        (
            "operator's memory before and after",
            f"{result.operator_memory_before_mib} MiB, {result.operator_memory_after_mib} MiB",
        ),
    )
    head = f"Kubernetes {result.server}, {result.cores} cores for everything, {WRITERS} writers"
    return "\n".join([head, "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


if __name__ == "__main__":
    main()
