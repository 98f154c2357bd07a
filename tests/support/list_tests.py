"""Prints as JSON the tests that pytest would run with the given arguments: their ids and marks.

It is a separate program, because a run of pytest cannot collect the tests of another run.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys

import pytest


class Listing:
    def __init__(self) -> None:
        self.tests: dict[str, list[str]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.tests = {item.nodeid: sorted({mark.name for mark in item.iter_markers()}) for item in session.items}


def main() -> int:
    listing, said = Listing(), io.StringIO()
    with contextlib.redirect_stdout(said):
        status = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *sys.argv[1:]], plugins=[listing])
    if status != 0:
        print(said.getvalue(), file=sys.stderr)
        return int(status)
    print(json.dumps(listing.tests))
    return 0


if __name__ == "__main__":
    sys.exit(main())
