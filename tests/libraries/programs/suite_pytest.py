"""Runs files of a library's own tests by pytest, as suite.py does those of unittest, and says the same of each."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence

import pytest
from suite import ended, leave_out, left_out, say


class Outcomes:
    """Says each outcome at once, since a test may end the process. A test's end comes after its teardown."""

    def __init__(self, name: str) -> None:
        self.name = name

    def id(self, node: str) -> str:
        """The test below its file, wherever the venv is: `test_array.TestArray.test_sum[3]`."""
        return f"{self.name}.{node.partition('::')[2].replace('::', '.')}"

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if not left_out(self.id(item.nodeid))]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        say(begun=self.id(item.nodeid))
        self.problem = ""
        result = yield
        ended(self.id(item.nodeid), self.problem)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # What the library expects to fail is one of the skipped.
        if not report.passed and not hasattr(report, "wasxfail"):
            self.problem = f"skips itself: {report.longrepr[2]}" if report.skipped else report.longreprtext

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            ended(self.name, report.longreprtext)


def run(files: Sequence[str]) -> None:
    for file in files:
        say(module=file)
        folder, _, name = file.rpartition("/")
        outcomes = Outcomes(name.removesuffix(".py"))
        # The settings of this repository, whose folder may be above it, are not the library's.
        options = ["-q", "-p", "no:cacheprovider", "--tb=short", "-c", os.devnull, "--rootdir", folder]
        code = pytest.main([*options, file], [outcomes])
        if code not in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED}:
            ended(outcomes.name, f"pytest ended with {code!r}")
    say(complete=True)


if __name__ == "__main__":
    skips, *files = sys.argv[1:]
    leave_out(skips)
    run(files)
