"""The cluster of `make cluster` with the chart installed, a namespace for each test, and a report of the run."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator

import pytest
from support.checker import Checker
from support.installation import Installation
from support.kubectl import CLUSTER, ROOT, Kubectl
from support.namespace import Namespace, temporary
from support.report import Report, Row

RESULTS = ROOT / "target" / "e2e"
REPORT = pytest.StashKey[Report]()
FAILED = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[REPORT] = Report()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Moves tests that stop or remove parts behind the tests that need them; the sort is stable."""
    last = ("test_deviceplugin_faults", "test_webhook_down", "test_faults", "test_upgrade")
    items.sort(key=lambda item: last.index(item.path.stem) + 1 if item.path.stem in last else 0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    # Each test is one row: its call, or the phase that kept it from being called.
    if report.when == "call" or not report.passed:
        reason = str(report.longrepr[2]) if report.skipped and isinstance(report.longrepr, tuple) else ""
        item.config.stash[REPORT].rows.append(Row(item.nodeid, report.outcome, round(report.duration, 2), reason))
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails a run that skipped a test if the cluster is required (CI)."""
    rows = session.config.stash[REPORT].rows
    if os.environ.get("REMOTEGPU_E2E_REQUIRED") and (not rows or any(row.result == "skipped" for row in rows)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    report = config.stash[REPORT]
    if report.rows:
        report.write(RESULTS / "report.json")
        terminalreporter.section("e2e report, also in target/e2e/report.json")
        terminalreporter.write_line(report.table())


@pytest.fixture(scope="session")
def kubectl(pytestconfig: pytest.Config) -> Kubectl:
    if os.geteuid() != 0 and "REMOTEGPU_E2E_CONTEXT" not in os.environ:
        pytest.skip("the cluster's nodes need root; run as root, or name another cluster in REMOTEGPU_E2E_CONTEXT")
    if not (CLUSTER / "admin.kubeconfig").exists() and "REMOTEGPU_E2E_CONTEXT" not in os.environ:
        pytest.skip("there is no cluster; `make test-e2e` makes one")
    kubectl = Kubectl.of_environment()
    version = json.loads(kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"]
    pytestconfig.stash[REPORT].server_version = version
    return kubectl


@pytest.fixture(scope="session")
def nodes(kubectl: Kubectl) -> list[str]:
    return sorted(node["metadata"]["name"] for node in kubectl.all("nodes"))


@pytest.fixture(scope="session")
def installation(kubectl: Kubectl) -> Installation:
    """Installs the chart with the images of `make images`, or brings it up to date."""
    installation = Installation(kubectl)
    installation.upgrade()
    installation.wait_until_ready()
    return installation


@pytest.fixture
def namespace(kubectl: Kubectl, installation: Installation, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace that enforces the `restricted` standard and has the test programs; deleted after the test."""
    with temporary(kubectl) as it:
        yield it
        if request.node.stash.get(FAILED, False):
            installation.save_state(RESULTS / "failed" / request.node.name)


@pytest.fixture
def checker(kubectl: Kubectl, installation: Installation) -> Checker:
    return Checker(kubectl)
