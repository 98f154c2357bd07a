"""docs/metrics.md lists what the parts export, with its labels: no more, no less."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric

from remotegpu.appliance.backends.base import Readings
from remotegpu.appliance.metrics import Counters, Gauges
from remotegpu.rpc import pb
from remotegpu_deviceplugin.status import Figures
from remotegpu_operator import metrics as operator_metrics
from remotegpu_operator.webhook import server as webhook

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"

Labels = dict[str, set[str]]


def of_counters(found: Iterable[Any]) -> Labels:
    """A counter is exported with `_total`."""
    metrics = [each for each in found if isinstance(each, MetricWrapperBase)]
    return {each._name + "_total" * (each._type == "counter"): set(each._labelnames) for each in metrics}


def of_families(found: Iterable[Metric]) -> Labels:
    return {each.name + "_total" * (each.type == "counter"): set(getattr(each, "_labelnames", ())) for each in found}


def appliance() -> Labels:
    counters = Counters()
    gauges = Gauges(pb.InventoryReply, lambda _uuid: Readings(), dict)
    return of_counters([*vars(counters).values(), *counters.stats.values()]) | of_families(gauges.collect())


@pytest.mark.parametrize(
    ("part", "exported"),
    [
        ("Appliance", appliance()),
        ("Operator", of_counters(vars(operator_metrics).values())),
        ("Webhook", of_counters(vars(webhook).values())),
        ("Device plugin", of_families(Figures([]).collect())),
    ],
)
def test_the_page_lists_what_is_exported(part: str, exported: Labels) -> None:
    table = PAGE.read_text().split(f"\n## {part}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", table, re.MULTILINE)
    assert {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows} == exported
