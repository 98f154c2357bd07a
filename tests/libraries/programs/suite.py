"""Runs modules of a library's own tests, those of unittest: `suite.py SKIPS MODULE ...`. Each test gives a line of JSON
when it begins, and one with why it did not pass. SKIPS is the table of tests that are left out.
"""

from __future__ import annotations

import fnmatch
import json
import sys
import tomllib
import traceback
import unittest
from collections.abc import Iterator
from pathlib import Path

PATTERNS: list[str] = []


def leave_out(skips: str) -> None:
    content = tomllib.loads(Path(skips).read_text())
    PATTERNS.extend(pattern for each in content["skip"] for pattern in each["tests"])


def left_out(name: str) -> bool:
    found = [pattern for pattern in PATTERNS if fnmatch.fnmatchcase(name, pattern)]
    if found:
        say(left_out=name, by=found)
    return bool(found)


def say(**what: object) -> None:
    """On a line of its own: what a test printed may have no end."""
    print("\n" + json.dumps(what), flush=True)


def ended(name: str, problem: str = "") -> None:
    say(test=name, problem=" ".join(problem.split())[-300:])


class Outcomes(unittest.TestResult):
    """Says each outcome at once, since a test may end the process. A test of which a part is wrong says so before."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: set[str] = set()

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        say(begun=test.id())

    def fail(self, test: unittest.TestCase, problem: str) -> None:
        self.wrong.add(test.id())
        ended(test.id(), problem)

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        if test.id() not in self.wrong:
            ended(test.id())

    def addError(self, test: unittest.TestCase, err: tuple) -> None:  # noqa: N802
        self.fail(test, "".join(traceback.format_exception(*err)))

    addFailure = addError  # noqa: N815

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: tuple | None) -> None:  # noqa: N802
        if err is not None:
            self.addError(test, err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self.fail(test, f"skips itself: {reason}")

    def addExpectedFailure(self, test: unittest.TestCase, err: tuple) -> None:  # noqa: N802
        ended(test.id())

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        self.fail(test, "the library expects this to fail")


def cases(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for each in suite:
        yield from cases(each) if isinstance(each, unittest.TestSuite) else [each]


def run(module: str) -> None:
    wanted, found = unittest.TestSuite(), unittest.defaultTestLoader.loadTestsFromName(module)
    wanted.addTests(case for case in cases(found) if not left_out(case.id()))
    wanted.run(Outcomes())


if __name__ == "__main__":
    skips, *modules = sys.argv[1:]
    leave_out(skips)
    for module in modules:
        say(module=module)
        run(module)
    say(complete=True)
