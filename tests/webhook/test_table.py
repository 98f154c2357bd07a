"""Tests that the chart's admission objects are generated from the table in `rules`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.chart import NAMESPACE
from support.system import ROOT
from support.webhook import admission_objects

from remotegpu.api.kubernetes import USER_ANNOTATIONS
from remotegpu_operator.webhook.rules import ENTRIES, SPECS


def test_generating_again_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "admission.yaml"
    subprocess.run([sys.executable, ROOT / "tools" / "generate_admission.py", file], check=True)
    assert file.read_text() == (ROOT / "charts" / "remotegpu" / "files" / "admission.yaml").read_text()


def test_the_chart_renders_every_entry() -> None:
    configuration, policy, binding = admission_objects()
    assert [binding["spec"]["policyName"], policy["metadata"]["name"]] == ["remotegpu"] * 2
    rendered = configuration["webhooks"]
    for entry, found in zip(ENTRIES, rendered, strict=True):
        service = {"name": "remotegpu-webhook", "namespace": NAMESPACE, "port": 443, "path": entry.url_path}
        assert found.pop("clientConfig") == {"service": service}
        assert found == {key: value for key, value in entry.as_webhook().items() if key != "path"}
        assert (found["failurePolicy"], found["sideEffects"]) == ("Fail", "None")
    assert all(key in str(policy) for key in USER_ANNOTATIONS)


def test_subresources_are_nobodys_business() -> None:
    """Requests for subresources such as status and scale never call the webhook."""
    assert not [plural for _, plural in SPECS if "/" in plural]
    assert len(SPECS) == sum(len(entry.resources) for entry in ENTRIES) == 9
