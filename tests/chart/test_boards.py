"""The chart's Grafana boards: Prometheus can answer their queries from the metrics that the parts export."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.parse
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric
from support.chart import CHART, NAMESPACE, Object, render
from support.prometheus import MISSING, PROMTOOL, Query, prometheus
from support.system import ROOT, until

from remotegpu.api.pools import AppliancePhase, ApplianceStatus, GpuStatus
from remotegpu.appliance.backends.base import Readings
from remotegpu.appliance.metrics import Counters, Gauges
from remotegpu.rpc import pb
from remotegpu_deviceplugin.plugin import Plugin
from remotegpu_deviceplugin.status import Figures
from remotegpu_operator import metrics as operator_metrics
from remotegpu_operator.allocation import Allocator
from remotegpu_operator.webhook import server as webhook

GIB = 1 << 30
FOLDER = CHART / "files" / "boards"
BOARDS: dict[str, Object] = {file.stem: json.loads(file.read_text()) for file in sorted(FOLDER.glob("*.json"))}
# The units used here, by Grafana's names.
UNITS = {"none", "percentunit", "s", "bytes", "Bps", "reqps", "ops", "watt", "celsius"}
# Possible values of labels; the metric of each is in docs/metrics.md.
LABELS = {
    "gpu": ["0"],
    "xid": ["79"],
    "namespace": ["team"],
    "reason": ["NOT_FOUND"],
    "environment": ["torch"],
    "phase": ["Pending", "Allocated"],
    "verb": ["GET"],
    "resource": ["pods"],
    "code": ["200"],
    "concern": ["claims"],
    "certificate": ["remotegpu-webhook-tls"],
    "path": ["/mutate-pods"],
    "outcome": ["allowed", "refused"],
    "result": ["hit", "miss"],
    # Labels of gauges that `count_pool` sets.
    "pool": [],
    "state": [],
}
EXPRESSIONS = [
    (name, panel["title"], target["expr"])
    for name, board in BOARDS.items()
    for panel in board["panels"]
    for target in panel["targets"]
]


def test_what_is_generated_is_up_to_date(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "tools" / "generate_boards.py", tmp_path], check=True)
    assert {file.stem: json.loads(file.read_text()) for file in tmp_path.glob("*.json")} == BOARDS, (
        "run `make generate`"
    )
    assert list(BOARDS) == ["appliance", "pool", "tenant"]


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_is_whole(name: str) -> None:
    board = BOARDS[name]
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    assert {panel["fieldConfig"]["defaults"]["unit"] for panel in panels} <= UNITS
    cells = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in panels
        for x, y in itertools.product(range(panel["gridPos"]["w"]), range(panel["gridPos"]["h"]))
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
    variables = {each["name"]: each for each in board["templating"]["list"]}
    assert variables.pop("datasource")["type"] == "datasource"
    asking = [*panels, *(target for panel in panels for target in panel["targets"]), *variables.values()]
    assert all(each["datasource"] == {"type": "prometheus", "uid": "${datasource}"} for each in asking)
    written = json.dumps(board)
    assert "://" not in written
    used = set(re.findall(r"\$(\w+)", written)) - {"__rate_interval", "__all"}
    assert used == set(variables)


def test_they_are_config_maps_where_they_are_wanted(tmp_path: Path) -> None:
    def boards(values: Object) -> list[Object]:
        kind = (each for each in render({"metrics": {"dashboards": values}}, tmp_path) if each["kind"] == "ConfigMap")
        return [each for each in kind if "-board-" in each["metadata"]["name"]]

    assert boards({}) == []
    found = boards({"enabled": True, "folder": "GPUs"})
    assert [json.loads(text) for each in found for text in each["data"].values()] == list(BOARDS.values())
    for each in found:
        assert each["metadata"]["namespace"] == NAMESPACE
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert each["metadata"]["annotations"] == {"grafana_folder": "GPUs"}
    # An object of the API server is at most 1 MiB; so is a whole release, compressed.
    assert sum(len(text) for each in found for text in each["data"].values()) < 100_000


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_each_expression_is_answered(tmp_path: Path) -> None:
    now = int(time.time())
    recorded = tmp_path / "metrics"
    recorded.write_text("\n".join(record(now)) + "\n# EOF\n")
    filled = [PROMTOOL, "tsdb", "create-blocks-from", "openmetrics", str(recorded), str(tmp_path / "data")]
    done = subprocess.run(filled, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    with prometheus(tmp_path, {}) as ask:
        until(lambda: is_ready(ask), 60, "Prometheus has started")
        answers = {each: answer(ask, each[2], now) for each in EXPRESSIONS}
        assert [each for each, found in answers.items() if not found or not all(map(_finite, found))] == []
        figures = {each[:2]: found[0] for each, found in answers.items() if len(found) == 1}
        assert figures["pool", "Allocated"] == 0
        assert figures["pool", "Free"] == 2
        assert figures["tenant", "Memory that the claims have"] == 8 * GIB
        assert figures["tenant", "Of it in use"] == 0.25
        assert figures["tenant", "Claims without a session"] == 1
        assert figures["appliance", "Memory that leases have"] == 0.125
        assert figures["appliance", "Code that clients need not send"] == 0.5
        # It had a second of the GPU in every 30.
        assert figures["tenant", "Time of GPUs"] == pytest.approx(1 / 30)
        for board in BOARDS.values():
            for each in board["templating"]["list"][1:]:
                assert choices(ask, each["query"]["query"], now), each["query"]


def record(now: int) -> Iterator[str]:
    """Yields the parts' metrics every 30 s for ten minutes, as a server that scrapes pod `a` stores them."""
    lease = pb.Lease(lease_id="0123456789", claim="team/training", claim_uid="u", sessions=1, host_bytes=GIB)
    lease.places.add(gpu="GPU-0", leased_bytes=8 * GIB, used_bytes=2 * GIB, compute_milli=100)
    inventory = pb.InventoryReply(leases=[lease, pb.Lease(lease_id="9876543210", claim="team/idle", claim_uid="v")])
    inventory.gpus.add(uuid="GPU-0", healthy=True, total_bytes=80 * GIB, shareable_bytes=64 * GIB, leased_bytes=8 * GIB)
    counters = Counters()
    gauges = Gauges(
        lambda: inventory, lambda _: Readings(10, 20, 2 * GIB, 40, 100_000, 700_000), lambda: {"worker": []}
    )
    exporters = [
        each
        for holder in (vars(counters), counters.stats, vars(operator_metrics), vars(webhook))
        for each in holder.values()
        if isinstance(each, MetricWrapperBase)
    ]
    gpus = tuple(GpuStatus(f"GPU-{number}", "H100", memory=80 * GIB, shareable=64 * GIB) for number in range(2))
    allocator = Allocator()
    allocator.set_pool("default", [ApplianceStatus("a", "node-a", phase=AppliancePhase.READY, gpus=gpus)])
    lines: dict[str, list[str]] = defaultdict(list)
    for moment in range(now - 600, now + 1, 30):
        for each in exporters:
            grow(each)
        operator_metrics.count_pool("default", allocator.capacity("default"))
        inventory.leases[0].places[0].gpu_nanoseconds += 10**9
        families: Iterable[Metric] = itertools.chain(
            *(each.collect() for each in exporters),
            gauges.collect(),
            Figures([Plugin("remotegpu/milli", lambda: None)]).collect(),  # type: ignore[arg-type, return-value]
        )
        for family in families:
            for sample in family.samples:
                labels = ",".join(f'{name}="{value}"' for name, value in (sample.labels | {"pod": "a"}).items())
                lines[family.name].append(f"{sample.name}{{{labels}}} {float(sample.value)} {moment}")
    return itertools.chain.from_iterable(lines.values())


def grow(metric: MetricWrapperBase) -> None:
    """Raises the metric once for each combination of its labels' values."""
    values = itertools.product(*(LABELS[name] for name in metric._labelnames))
    for each in (metric.labels(*some) if some else metric for some in values):
        match each:
            case Histogram():
                each.observe(0.02)
            case Counter() | Gauge():
                each.inc()


def is_ready(ask: Query) -> bool:
    try:
        return bool(ask("status/runtimeinfo"))
    except (urllib.error.URLError, ConnectionError):
        return False


def answer(ask: Query, expression: str, now: int) -> list[float]:
    """Evaluates a query with all values of the variables, and a scrape interval of 30 s."""
    text = re.sub(r"\$\w+", ".*", expression.replace("$__rate_interval", "2m"))
    found = ask(f"query?{urllib.parse.urlencode({'query': text, 'time': now})}")["result"]
    return [float(each["value"][1]) for each in found]


def choices(ask: Query, query: str, now: int) -> list[str]:
    found = re.fullmatch(r"label_values\((.*), (\w+)\)", query)
    assert found, query
    selector = re.sub(r"\$\w+", ".*", found[1])
    asked = urllib.parse.urlencode({"match[]": selector, "start": now - 600, "end": now})
    values: list[str] = ask(f"label/{found[2]}/values?{asked}")
    return values


def _finite(value: float) -> bool:
    return abs(value) < float("inf")
