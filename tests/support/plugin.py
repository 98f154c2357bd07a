"""Fixtures for several folders. It is a plugin, since a common conftest.py would conflict with the one in e2e/."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import signal
from collections.abc import Iterator
from types import CodeType
from typing import TYPE_CHECKING, Any

import pytest
from support import shards

if TYPE_CHECKING:
    from support.apiserver import ApiServer


def pytest_configure() -> None:
    """Restores the handlers of SIGINT and SIGHUP, which background jobs and nohup ignore, before tests inherit them."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    _patience()


def _patience() -> None:
    """Removes hypothesis's time limits for examples, since CI runs other work at the same time."""
    with contextlib.suppress(ImportError):  # The environment of torch's tests lacks it.
        from hypothesis import HealthCheck, settings

        settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
        settings.load_profile("patient")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part",
        action="append",
        metavar="NAME",
        help="only tests of this part of CI: core, api, or a shard of .ci/shards.toml; can be given again",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if any({"api_server", _one.__name__} & set(code.co_names) for code in _codes(item)):
            item.add_marker("apiserver")
    if parts := config.getoption("--part"):
        _keep(parts, config, items)


def _codes(item: pytest.Item) -> Iterator[CodeType]:
    """Yields the code objects of a test and of its fixtures."""
    if isinstance(item, pytest.Function):
        fixtures = [each for all_of_a_name in item._fixtureinfo.name2fixturedefs.values() for each in all_of_a_name]
        for function in (item.function, *(fixture.func for fixture in fixtures)):
            if code := getattr(inspect.unwrap(function), "__code__", None):
                yield code


def _keep(parts: list[str], config: pytest.Config, items: list[pytest.Item]) -> None:
    table = shards.load()
    if unknown := set(parts) - {shards.CORE, shards.API, shards.NONE, *(shard.name for shard in table.shards)}:
        raise pytest.UsageError(f"--part: {shards.TABLE} has no shard named {', '.join(sorted(unknown))}")
    kept: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        (kept if table.part_of(item.nodeid, marks) in parts else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = kept


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the total time of tests/documented over all processes. The limit is 180 s."""
    reports = [each for kind in terminalreporter.stats.values() for each in kind if isinstance(each, pytest.TestReport)]
    seconds = sum(each.duration for each in reports if each.nodeid.startswith("tests/documented/"))
    if seconds:
        terminalreporter.write_line(f"tests/documented took {seconds:.0f} s, of 180")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """Keeps tests in one process that differ only after the last hyphen of their id, with `--dist loadgroup`.

    xdist 3.8 marks its groups in an attribute that pytest 9.2 no longer reads, so it would spread them.
    """
    if config.getoption("dist") != "loadgroup":
        return None
    scheduling: Any = importlib.import_module("xdist.scheduler").LoadScopeScheduling(config, log)
    scheduling._split_scope = lambda nodeid: nodeid.rpartition("-")[0] or nodeid
    made: object = scheduling
    return made


def _one(version: str) -> Iterator[ApiServer]:
    # Imported here: the environment of `make test-frameworks` lacks the packages for certificates.
    from support.apiserver import api_server

    with api_server(version) as server:
        yield server


@pytest.fixture(scope="session")
def apiserver() -> Iterator[ApiServer]:
    """An API server of 1.34 for the whole run. Each test must use its own namespaces."""
    yield from _one("1.34")


@pytest.fixture(scope="session", params=["1.34", "newest"])
def each_apiserver(request: pytest.FixtureRequest) -> Iterator[ApiServer]:
    """An API server of 1.34 and one of the newest minor version. The test runs once with each."""
    yield from _one(request.param)
