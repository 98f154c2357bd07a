"""The page in a real Chromium, of a real API server's objects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect
from playwright.sync_api import Page as Tab
from support.browser import findings, watched
from support.dashboard import GPU, Page
from support.kubelab import MIB
from support.kubenodes import Appliance

from remotegpu.rpc import pb

VIEWS = {
    "#/": "default",
    "#/claims": "Claims",
    "#/claims/team-a/train": "team-a/train",
    "#/claims/team-a/waits": "team-a/waits",
    "#/usage": "Usage",
}


@pytest.fixture
def tab(browser: Browser, page: Page) -> Iterator[Tab]:
    with watched(browser, page.url) as opened:
        yield opened


def sign_in(tab: Tab, page: Page, token: str, view: str = "#/") -> None:
    tab.goto(f"{page.url}/{view}")
    tab.get_by_label("Token of the cluster").fill(token)
    tab.keyboard.press("Enter")
    expect(tab.get_by_role("status")).to_have_text("Live", timeout=15_000)


def test_a_pool_and_a_claim_are_shown_and_changes_come_by_themselves(tab: Tab, page: Page, everything: str) -> None:
    sign_in(tab, page, everything)
    expect(tab.get_by_role("heading", name="default")).to_be_visible()
    bar = tab.get_by_role("img", name="512 MiB of 1 GiB given to claims")
    expect(bar.locator("span")).to_have_count(2)
    assert bar.locator("span").first.evaluate("each => each.style.width") == "25%"
    tab.get_by_role("link", name="Claims", exact=True).click()
    row = tab.get_by_role("row", name="team-a/late")
    expect(tab.get_by_role("row", name="team-a/train")).to_be_visible()
    expect(row).to_have_count(0)
    page.claim("team-a", "late")
    expect(row).to_contain_text("Pending", timeout=15_000)
    page.has_share("team-a", "late")
    expect(row).to_contain_text("Allocated", timeout=15_000)
    page.kube("DELETE", "/apis/remotegpu.io/v1alpha1/namespaces/team-a/gpuclaims/late")
    expect(row).to_have_count(0, timeout=15_000)


def test_claims_are_found_and_sorted_by_the_keyboard_alone(tab: Tab, page: Page, everything: str) -> None:
    sign_in(tab, page, everything, "#/claims")
    tab.get_by_label("Find").focus()
    tab.keyboard.type(GPU)
    names = tab.get_by_role("rowheader")
    expect(names).to_have_text(["team-a/train", "team-b/secret-project"])
    head = tab.get_by_role("columnheader", name="Claim", exact=True)
    head.get_by_role("button").focus()
    tab.keyboard.press("Enter")
    expect(head).to_have_attribute("aria-sort", "ascending")
    tab.keyboard.press("Enter")
    expect(names).to_have_text(["team-b/secret-project", "team-a/train"])
    names.last.get_by_role("link").focus()
    tab.keyboard.press("Enter")
    expect(tab.get_by_role("heading", name="team-a/train")).to_be_visible()
    expect(tab.get_by_role("table", name="Conditions")).to_contain_text("it has its share")


def test_usage_of_the_time_and_by_what_the_keyboard_chooses(tab: Tab, page: Page, everything: str) -> None:
    sign_in(tab, page, everything)
    tab.get_by_role("link", name="Usage").focus()
    tab.keyboard.press("Enter")
    sums = tab.get_by_role("table", name="Sums")
    expect(sums.get_by_role("row")).to_have_count(4)
    expect(sums.get_by_role("row", name="team-b")).to_contain_text("0.1775 %")
    expect(tab.get_by_role("img", name="last day")).to_be_visible()
    tab.get_by_role("combobox", name="Time").focus()
    tab.keyboard.type("last 7")
    expect(tab.get_by_role("img", name="last 7 days")).to_be_visible()
    tab.get_by_role("combobox", name="By").focus()
    tab.keyboard.type("claim")
    expect(sums.get_by_role("row", name="team-b/secret-project")).to_be_visible()
    assert tab.url.endswith("#/usage?range=week&by=claim")
    # The bars have the heights of what was held and used.
    held, used = (
        sum(tab.locator(f".history .{kind}").evaluate_all("all => all.map((each) => +each.getAttribute('height'))"))
        for kind in ("held", "used")
    )
    assert used / held == pytest.approx(600 / 1150, rel=0.01)
    expect(tab.get_by_role("table", name="Waiting times")).to_contain_text("default330s1m30s")
    tab.get_by_role("table", name="Held and not used").get_by_role("link", name="team-a/train").focus()
    tab.keyboard.press("Enter")
    expect(tab.get_by_text("0.13 GPU hours, which cost 450.00")).to_be_visible()
    expect(tab.get_by_text("33 %")).to_be_visible()


def test_sessions_are_those_that_the_appliance_tells(
    tab: Tab, page: Page, appliance: Appliance, everything: str
) -> None:
    places = [pb.Place(gpu=GPU, used_bytes=64 * MIB)]
    appliance.leases = [pb.Lease(lease_id="1", claim="team-a/train", sessions=2, places=places)]
    appliance.gpus[0].used_bytes = 64 * MIB
    sign_in(tab, page, everything)
    expect(tab.get_by_text("2 sessions, 64 MiB in use")).to_be_visible(timeout=30_000)
    tab.evaluate("location.hash = '#/claims/team-a/train'")
    expect(tab.get_by_role("definition").filter(has_text="2 sessions, 64 MiB in use")).to_be_visible()


def test_a_refused_token_is_told_and_forgotten(browser: Browser, page: Page) -> None:
    tab = browser.new_page()
    tab.goto(page.url)
    tab.get_by_label("Token of the cluster").fill("not-a-token")
    tab.keyboard.press("Enter")
    expect(tab.get_by_role("alert")).to_contain_text("the API server refuses the token", timeout=15_000)
    assert tab.evaluate("[document.cookie, localStorage.length, sessionStorage.length]") == ["", 0, 0]
    tab.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser: Browser, page: Page, everything: str, scheme: str) -> None:
    page.claim("team-a", "waits")
    tab = browser.new_page(color_scheme="dark" if scheme == "dark" else "light")
    tab.goto(page.url)
    expect(tab.get_by_label("Token of the cluster")).to_be_visible()
    assert findings(tab) == []
    sign_in(tab, page, everything)
    for view, title in VIEWS.items():
        tab.evaluate("view => { location.hash = view; }", view)
        expect(tab.get_by_role("heading", name=title, level=2)).to_be_visible(timeout=15_000)
        if title == "team-a/waits":
            expect(tab.get_by_role("region", name="Why it waits")).to_be_visible(timeout=15_000)
        if title == "Usage":
            tab.get_by_text("The bars as a table").click()
            expect(tab.get_by_role("table", name="History")).to_be_visible(timeout=15_000)
        assert findings(tab) == [], view
    tab.close()
    # Other tests look at the queue.
    page.kube("DELETE", "/apis/remotegpu.io/v1alpha1/namespaces/team-a/gpuclaims/waits")
