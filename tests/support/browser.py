"""Runs Debian's Chromium, and checks a page of ours with axe."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright
from playwright.sync_api import Page as Tab
from support.system import ROOT

AXE = ROOT / "target" / "dashboard" / "node_modules" / "axe-core" / "axe.min.js"


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("Chromium is not installed; `make chromium` installs it where it is run by root")
    if not AXE.exists():
        pytest.skip(f"{AXE} is missing; `make build` puts it there")
    with sync_playwright() as playwright:
        # A container has no user namespaces for Chromium's own sandbox.
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@contextlib.contextmanager
def watched(browser: Browser, url: str) -> Iterator[Tab]:
    """Opens a tab, and fails at the end if the browser reported an error or requested anything but `url`."""
    opened = browser.new_page()
    problems: list[str] = []
    opened.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("request", lambda asked: None if asked.url.startswith(url) else problems.append(asked.url))
    yield opened
    opened.close()
    assert problems == []


def findings(tab: Tab) -> list[str]:
    # Evaluated, since the page's policy refuses a script element.
    tab.evaluate(AXE.read_text())
    found = tab.evaluate("axe.run().then((result) => result.violations)")
    assert tab.evaluate("axe.run().then((result) => result.passes.length)") > 5
    return [f"{each['id']}: {each['nodes'][0]['html']}" for each in found]
