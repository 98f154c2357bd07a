"""A Prometheus server reads a running appliance, and evaluates the chart's alerts on what it read."""

from __future__ import annotations

import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.prometheus import MISSING, PROMTOOL, Query, prometheus
from support.stand_in import StandIn
from support.system import ROOT, free_port, until

from remotegpu.api.quantities import Ask

MIB = 1 << 20
ALERTS = ROOT / "charts" / "remotegpu" / "files" / "alerts.yaml"
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@pytest.fixture
def metrics_port() -> int:
    return free_port()


@pytest.fixture
def server(tmp_path: Path, metrics_port: int) -> Iterator[Query]:
    rules = tmp_path / "rules.yaml"
    rules.write_text(yaml.safe_dump({"groups": [{"name": "remotegpu", "rules": yaml.safe_load(ALERTS.read_text())}]}))
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [
            {
                "job_name": "appliance",
                "static_configs": [{"targets": [f"127.0.0.1:{metrics_port}"], "labels": {"pod": "appliance-0"}}],
            }
        ],
    }
    with prometheus(tmp_path, config) as ask:
        yield ask


def value(ask: Query, query: str) -> float | None:
    try:
        found = ask(f"query?query={urllib.parse.quote(query)}")["result"]
    except (urllib.error.URLError, ConnectionError):
        return None  # it has not started yet
    return float(found[0]["value"][1]) if found else None


def test_it_reads_an_appliance_and_evaluates_each_alert(dist: Path, metrics_port: int, server: Query) -> None:
    with StandIn(dist, "--metrics-port", str(metrics_port)) as appliance:
        lease = appliance.lease(Ask(milli_per_gpu=250))
        session = lease.session(1)
        session.grant(8 * MIB)
        until(lambda: value(server, "remotegpu_gpu_used_bytes") == 8 * MIB, 30, "what is granted is read")
        assert value(server, 'sum by (pod) (remotegpu_gpu_leased_bytes{pod="appliance-0"})') == 256 * MIB
        until(lambda: value(server, "rate(remotegpu_sessions_opened_total[5s])") is not None, 30, "it has a rate")
        (group,) = server("rules")["groups"]
        assert len(group["rules"]) == len(yaml.safe_load(ALERTS.read_text()))
        until(
            lambda: all(each["health"] == "ok" for each in server("rules")["groups"][0]["rules"]),
            30,
            "each alert is evaluated without an error",
        )
        # No operator is read: that alert alone is on its way.
        until(lambda: _states(server).get("RemoteGPUNoOperator") == "pending", 30, "it misses the operator")
        assert [name for name, state in _states(server).items() if state != "inactive"] == ["RemoteGPUNoOperator"]
        # Names, units and help texts, as Prometheus would have them.
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=10) as answer:
            exported = answer.read()
        checked = subprocess.run([PROMTOOL, "check", "metrics"], input=exported, capture_output=True, timeout=60)
        assert checked.returncode == 0, checked.stdout.decode() + checked.stderr.decode()


def _states(ask: Query) -> dict[str, str]:
    return {each["name"]: each["state"] for each in ask("rules")["groups"][0]["rules"]}
