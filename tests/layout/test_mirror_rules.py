"""Each rule of memory that host and device share is left out by `make test-mirror-rules`, under a test that exists."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from support.system import ROOT

RULES = ROOT / "remoting" / "driverapi" / "src" / "rules.rs"
TESTS = tomllib.loads((ROOT / "tests" / "order" / "mirror_rules.toml").read_text())["test"]


def test_each_rule_has_a_test() -> None:
    named = re.findall(r'^    \w+ = "((?:mirror|idle|track)-[a-z-]+)";$', RULES.read_text(), re.MULTILINE)
    left_out = {fault.partition(":")[0] for test in TESTS for fault in test["faults"]}
    assert left_out == set(named) != set()


def test_each_test_exists() -> None:
    for test in TESTS:
        file, _, name = test["name"].rpartition("::")
        if package := test.get("package"):
            sources = (ROOT / "remoting" / package).rglob("*.rs")
            found = any(f"fn {name}(" in source.read_text() for source in sources)
        else:
            found = f"def {name.partition('[')[0]}(" in (ROOT / Path(file)).read_text()
        assert found, test["name"]
