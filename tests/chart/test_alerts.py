"""The chart's alerts in Prometheus' own tool: each fires when it should, not before, and says what it should."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.prometheus import MISSING, PROMTOOL
from support.system import ROOT

Object = dict[str, Any]
ALERTS = ROOT / "charts" / "remotegpu" / "files" / "alerts.yaml"

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@dataclass(frozen=True)
class Case:
    """`series`: name and labels with a value for each minute, as promtool writes them."""

    alert: str
    series: dict[str, str]
    silent_at: str
    fires_at: str
    severity: str
    labels: dict[str, str]
    summary: str
    # Series for which it must be silent at all times.
    others: dict[str, str] = field(default_factory=dict)


def _buckets(fast: str, slow: str) -> dict[str, str]:
    """Requests below 0.1 s, and all of them, which took at most 0.5 s."""
    labels = {"0.1": fast, "0.5": slow, "+Inf": slow}
    return {f'remotegpu_webhook_seconds_bucket{{le="{each}"}}': values for each, values in labels.items()}


CASES = [
    Case(
        "RemoteGPUNoOperator",
        {'remotegpu_operator_leader{pod="a"}': "1x5 0x20", 'remotegpu_operator_leader{pod="b"}': "0x30"},
        "7m",
        "9m",
        "critical",
        {},
        "No operator holds the Lease, so pods that ask for a share wait.",
        {'remotegpu_operator_leader{pod="a"}': "1x5 0x30", 'remotegpu_operator_leader{pod="b"}': "0x5 1x30"},
    ),
    Case(
        "RemoteGPUApplianceLost",
        {'remotegpu_appliances{pool="p",phase="Lost"}': "0x2 2x20"},
        "4m",
        "6m",
        "critical",
        {"pool": "p"},
        "2 appliances of the pool p do not answer; their claims are Lost.",
    ),
    Case(
        "RemoteGPUApplianceNotReady",
        {'remotegpu_appliances{pool="p",phase="Draining"}': "1x20"},
        "9m",
        "11m",
        "warning",
        {"pool": "p", "phase": "Draining"},
        "1 appliances of the pool p are Draining.",
        {'remotegpu_appliances{pool="p",phase="Ready"}': "1x40"},
    ),
    Case(
        "RemoteGPUUnhealthyGPU",
        {'remotegpu_gpu_healthy{pod="a",gpu="3"}': "0x20"},
        "4m",
        "6m",
        "warning",
        {"pod": "a", "gpu": "3"},
        "The GPU 3 takes no new claims.",
        {'remotegpu_gpu_healthy{pod="a",gpu="3"}': "1x40"},
    ),
    Case(
        "RemoteGPUXid",
        {'remotegpu_xids_total{pod="a",gpu="0",xid="79"}': "0x5 1x20"},
        "4m",
        "7m",
        "warning",
        {"pod": "a", "gpu": "0", "xid": "79"},
        "The driver tells of XID 79 on GPU 0 of a.",
        # What programs cause.
        {'remotegpu_xids_total{pod="a",gpu="0",xid="31"}': "0+1x40"},
    ),
    Case(
        "RemoteGPUWorkersCrash",
        {'remotegpu_worker_exits_total{pod="a",result="signal"}': "0x2 0+1x30"},
        "5m",
        "15m",
        "warning",
        {"pod": "a"},
        "Workers on the appliance a keep dying, and sessions with them.",
        {'remotegpu_worker_exits_total{pod="a",result="clean"}': "0+9x40"},
    ),
    Case(
        "RemoteGPUGatewayCrashes",
        {'remotegpu_door_restarts_total{pod="a"}': "0x5 1x2 2x2 4x30"},
        "7m",
        "14m",
        "warning",
        {"pod": "a"},
        "The gateway of the appliance a keeps dying.",
    ),
    Case(
        "RemoteGPUTokensUnanswered",
        {'remotegpu_token_review_seconds_count{pod="a",outcome="unanswered"}': "0+2x30"},
        "4m",
        "15m",
        "warning",
        {"pod": "a"},
        "The appliance a cannot ask the API server whose tokens are; new pods cannot start on it.",
        {'remotegpu_token_review_seconds_count{pod="a",outcome="refused"}': "0+9x40"},
    ),
    Case(
        "RemoteGPUOperatorFails",
        {'remotegpu_reconcile_errors_total{pod="a",concern="pools"}': "0+1x60"},
        "14m",
        "35m",
        "warning",
        {"pod": "a", "concern": "pools"},
        "The operator keeps failing at pools.",
    ),
    Case(
        "RemoteGPUCertificateExpires",
        # Two weeks and an hour after the time 0 of the test.
        {'remotegpu_certificate_expires_seconds{certificate="c"}': f"{14 * 86400 + 3600}x200"},
        "119m",
        "122m",
        "critical",
        {"certificate": "c"},
        "The certificate in the Secret c ends in less than two weeks and is not renewed.",
    ),
    Case(
        "RemoteGPUClaimsWait",
        {"remotegpu_oldest_waiting_claim_seconds": "0+60x60"},
        "15m",
        "17m",
        "info",
        {},
        "A claim has waited for 17m 0s.",
    ),
    Case(
        "RemoteGPUClaimIdle",
        # On two appliances; on one of them a program runs at first.
        {
            'remotegpu_claim_sessions{pod="a",namespace="n",claim="c",uid="u"}': "0x200",
            'remotegpu_claim_sessions{pod="b",namespace="n",claim="c",uid="u"}': "1x5 0x200",
        },
        "64m",
        "67m",
        "info",
        {"namespace": "n", "claim": "c"},
        "The claim n/c has a share that no program has used for an hour.",
    ),
    Case(
        "RemoteGPUNodeOffersNothing",
        {'remotegpu_kubelet_listens{pod="a",resource="remotegpu/milli"}': "1x2 0x20"},
        "6m",
        "9m",
        "warning",
        {"pod": "a", "resource": "remotegpu/milli"},
        "The kubelet does not know remotegpu/milli of a, so pods with a share do not start there.",
    ),
    Case(
        "RemoteGPUWebhookSlow",
        _buckets("0x60", "0+6x60"),
        "9m",
        "15m",
        "warning",
        {},
        "The webhook takes 496ms for one of a hundred requests; the API server waits 5 s.",
        _buckets("0+6x60", "0+6x60"),
    ),
]


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("rules") / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "remotegpu", "rules": yaml.safe_load(ALERTS.read_text())}]}))
    return file


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_the_rules_are_rules(rules: Path) -> None:
    checked = promtool("check", "rules", str(rules))
    assert checked.returncode == 0, checked.stderr
    assert f"{len(CASES)} rules found" in checked.stdout
    assert [each.alert for each in CASES] == [each["alert"] for each in yaml.safe_load(ALERTS.read_text())]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_it_fires_when_it_should(case: Case, rules: Path, tmp_path: Path) -> None:
    (rule,) = [each for each in yaml.safe_load(ALERTS.read_text()) if each["alert"] == case.alert]
    description = re.sub(
        r"{{ \$labels\.(\w+) }}", lambda found: case.labels[found[1]], rule["annotations"]["description"]
    )
    fires = {
        "exp_labels": case.labels | {"severity": case.severity},
        "exp_annotations": {"summary": case.summary, "description": description},
    }
    tests = [_test(case, case.series, {case.silent_at: [], case.fires_at: [fires]})]
    if case.others:
        tests.append(_test(case, case.others, {case.silent_at: [], case.fires_at: [], "40m": []}))
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests}))
    done = promtool("test", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


def _test(case: Case, series: dict[str, str], expected: dict[str, list[Object]]) -> Object:
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [
            {"eval_time": when, "alertname": case.alert, "exp_alerts": alerts} for when, alerts in expected.items()
        ],
    }
