"""The page of an appliance without a cluster: who gets what, and in a real Chromium."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3
from cryptography import x509
from playwright.sync_api import Browser, expect
from support.browser import findings, watched
from support.certificates import certificate
from support.dashboard import sent
from support.stand_in import StandIn, make_dist
from support.system import REMOTEGPU, free_port, until

from remotegpu.api.quantities import Ask
from remotegpu.rpc import own_token
from remotegpu.rpc.client import Access, ApplianceClient, parse_endpoint

ROOT_TOKEN, ANN, BOB = (f"{name}-{name}-{name}-{name}" for name in ("root", "ann", "bob"))
TOKENS = f"[admin]\nroot:{ROOT_TOKEN}\n[user]\nann:{ANN}\nbob:{BOB}\n"


class Served(StandIn):
    """An appliance with a page."""

    def __init__(self, folder: Path, *options: str, access: Access = Access(), scheme: str = "http") -> None:
        address = f"127.0.0.1:{free_port()}"
        self.url = f"{scheme}://{address}"
        super().__init__(make_dist(folder / "dist"), "--dashboard", address, *options, access=access)

    def get(self, path: str, token: str = "", method: str = "GET", **headers: str) -> urllib3.BaseHTTPResponse:
        given = ({"Authorization": f"Bearer {token}"} if token else {}) | headers
        return urllib3.request(method, self.url + path, headers=given, retries=False, timeout=20, preload_content=True)

    @contextlib.contextmanager
    def leased_by(self, token: str, client: str) -> Iterator[str]:
        """A quarter of the GPU, while the block lasts."""
        with contextlib.closing(ApplianceClient(parse_endpoint(self.endpoint), Access(token), 20)) as caller:
            with caller.open_lease(Ask(milli_per_gpu=250), client, wait=False) as events:
                granted = next(event.granted for event in events if event.HasField("granted"))
            yield granted.lease_id[:8]
            caller.close_lease(granted.lease_id, granted.lease_secret)


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    file.write_text(TOKENS)
    file.chmod(0o600)
    return file


@pytest.fixture
def guarded(tmp_path: Path, tokens: Path) -> Iterator[Served]:
    with Served(tmp_path, "--tokens", str(tokens), access=Access(ROOT_TOKEN)) as here:
        yield here


@pytest.fixture
def open_one(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path, "--anybody") as here:
        yield here


def test_each_sees_what_ls_shows_it(guarded: Served) -> None:
    with guarded.leased_by(ANN, "laptop pid 7 python train.py") as of_ann, guarded.leased_by(BOB, "-") as of_bob:
        names = {"root": {f"laptop/{of_ann}", f"-/{of_bob}"}, "ann": {f"laptop/{of_ann}"}, "bob": {f"-/{of_bob}"}}
        for token, who in ((ROOT_TOKEN, "root"), (ANN, "ann"), (BOB, "bob")):
            found = guarded.get("/api/snapshot", token).json()
            assert found["claims"].keys() == names[who]
            (gpu,) = found["pools"][0]["appliances"][0]["gpus"]
            assert (gpu["allocatedMilli"], found["pools"][0]["free"]["milli"]) == (500, 500), "the sums are for all"
            assert guarded.get("/api/load", token).json()["claims"].keys() == names[who]
        lease = guarded.get("/api/snapshot", ANN).json()["claims"][f"laptop/{of_ann}"]
        assert (lease["message"], lease["milli"], lease["phase"]) == ("laptop pid 7 python train.py", 250, "Allocated")
    assert guarded.get("/api/snapshot", ROOT_TOKEN).json()["claims"] == {}


@pytest.mark.parametrize("path", ["/api/snapshot", "/api/events", "/api/load"])
def test_without_a_good_token_there_is_nothing(guarded: Served, path: str) -> None:
    for token, said in (("", "wants a token"), ("not-a-token", "does not know the token")):
        response = guarded.get(path, token)
        assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert said in response.json()["error"]
    assert guarded.get("/api/about").json() == {"of": "appliance", "signIn": True}


def test_it_only_reads_and_allows_its_own_scripts_alone(guarded: Served) -> None:
    for path in ("/", "/static/app.js", "/static/vendor/htm.js", "/api/snapshot", "/nowhere", "/static/../page.py"):
        headers = guarded.get(path).headers
        policy = dict(each.split(" ", 1) for each in headers["Content-Security-Policy"].split("; "))
        assert (policy["default-src"], policy["frame-ancestors"], policy["script-src"]) == (
            "'none'",
            "'none'",
            "'self'",
        )
        assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")
    assert [guarded.get(path).status for path in ("/", "/nowhere", "/static/../page.py")] == [200, 404, 404]
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
        response = guarded.get("/api/snapshot", ROOT_TOKEN, method)
        assert (response.status, response.headers["Allow"]) == (405, "GET")


def test_changes_come_and_end_with_the_right_to_see_them(guarded: Served, tokens: Path) -> None:
    stream = urllib3.request(
        "GET", f"{guarded.url}/api/events", headers={"X-Remotegpu-Token": ANN}, preload_content=False, timeout=20
    )
    messages = sent(iter(lambda: stream.read1(1 << 16), b""))
    assert next(messages)["claims"] == {}
    with guarded.leased_by(BOB, "another's"), guarded.leased_by(ANN, "laptop") as of_ann:
        changes: dict[str, Any] = {}
        until(lambda: changes.update(next(messages)["changes"]) or "claims" in changes, 20, "the lease is told")
        assert changes["claims"].keys() == {f"laptop/{of_ann}"}
    until(lambda: f"laptop/{of_ann}" in next(messages)["changes"].get("gone", ()), 20, "its end is told")
    tokens.write_text(TOKENS.replace(ANN, "another-another-another"))
    until(lambda: "does not know the token" in next(messages).get("error", ""), 20, "the stream ends")


def test_without_tokens_the_page_wants_that_of_its_user(tmp_path: Path) -> None:
    with Served(tmp_path) as here:
        assert here.get("/api/about").json() == {"of": "appliance", "signIn": True}
        host, _, port = here.endpoint.rpartition(":")
        found = own_token.find(host, int(port))
        assert found is not None
        assert [here.get("/api/snapshot", token).status for token in ("", "another", found[1])] == [401, 401, 200]


def test_for_anybody_no_page_of_another_name_reads(open_one: Served) -> None:
    assert open_one.get("/api/about").json() == {"of": "appliance", "signIn": False}
    port = open_one.url.rpartition(":")[2]
    for host, status in ((f"localhost:{port}", 200), (f"127.0.0.1:{port}", 200), (f"evil.example:{port}", 403)):
        assert open_one.get("/api/snapshot", Host=host).status == status
    assert "no name 'evil.example'" in open_one.get("/", Host="evil.example").json()["error"]


def test_it_is_served_over_tls_where_the_appliance_has_it(tmp_path: Path) -> None:
    certificate(tmp_path, "here", x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    pem, key = tmp_path / "here.pem", tmp_path / "here.key"
    options = ("--cert", str(pem), "--key", str(key))
    with Served(tmp_path, *options, access=Access(ca=pem), scheme="https") as here:
        pool = urllib3.PoolManager(ca_certs=str(pem))
        assert pool.request("GET", f"{here.url}/api/about", retries=False).json()["of"] == "appliance"
        old = ssl.create_default_context(cafile=str(pem))
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(urllib3.exceptions.HTTPError):
            urllib3.PoolManager(ssl_context=old).request("GET", here.url, retries=False)
        # A client that connects and says nothing keeps no other out.
        host, _, port = here.url.removeprefix("https://").rpartition(":")
        with socket.create_connection((host, int(port))):
            assert pool.request("GET", here.url, retries=False).status == 200


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--dashboard", "0.0.0.0:7073"), "other machines reach 0.0.0.0:7073: give --tokens and --cert and --key"),
        (("--dashboard", "7073"), "write HOST:PORT, as 127.0.0.1:7073"),
        (("--dashboard", "127.0.0.1:7073", "--kubernetes", "--name", "a"), "dashboard.enabled"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(options: tuple[str, ...], said: str) -> None:
    done = subprocess.run([REMOTEGPU, "appliance", *options], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())


def test_an_address_that_is_taken_is_told(open_one: Served) -> None:
    address = open_one.url.removeprefix("http://")
    listen = f"127.0.0.1:{free_port()}"
    done = open_one.start([REMOTEGPU, "appliance", "--listen", listen, "--dashboard", address, "--no-self-test"])
    assert done.returncode != 0
    assert f"cannot serve the page on {address} (address already in use): choose another --dashboard" in done.stderr


def test_a_lease_comes_and_goes_in_a_browser(browser: Browser, open_one: Served) -> None:
    with watched(browser, open_one.url) as tab:
        tab.goto(open_one.url)
        expect(tab.get_by_role("status")).to_have_text("Live", timeout=15_000)
        bar = tab.locator(".bar")
        expect(bar.locator("span")).to_have_count(0)
        with open_one.leased_by("", "lap top pid 7 python train.py") as lease:
            expect(bar.locator("span")).to_have_count(1, timeout=15_000)
            expect(tab.get_by_text("0.75 of 1 GPUs free (software, shared)")).to_be_visible()
            expect(tab.get_by_role("link", name="Usage")).to_have_count(0)
            tab.get_by_role("link", name="Leases", exact=True).click()
            tab.get_by_role("link", name=f"lap/{lease}").click()
            expect(tab.get_by_role("heading", name=f"lap/{lease}")).to_contain_text("Allocated")
            expect(tab.get_by_text("lap top pid 7 python train.py")).to_be_visible()
            expect(tab.get_by_role("heading", name="Events")).to_have_count(0)
        expect(tab.get_by_text("This lease has gone")).to_be_visible(timeout=15_000)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser: Browser, guarded: Served, scheme: str) -> None:
    tab = browser.new_page(color_scheme="dark" if scheme == "dark" else "light")
    tab.goto(guarded.url)
    with guarded.leased_by(ANN, "laptop") as lease:
        expect(tab.get_by_label("Token of the appliance")).to_be_visible()
        assert findings(tab) == []
        tab.get_by_label("Token of the appliance").fill("not-a-token")
        tab.keyboard.press("Enter")
        expect(tab.get_by_role("alert")).to_contain_text("does not know the token", timeout=15_000)
        tab.get_by_label("Token of the appliance").fill(ANN)
        tab.keyboard.press("Enter")
        expect(tab.get_by_text("ann", exact=True)).to_be_visible(timeout=15_000)
        for view, title in (("#/", "vm"), ("#/claims", "Leases"), (f"#/claims/laptop/{lease}", f"laptop/{lease}")):
            tab.evaluate("view => { location.hash = view; }", view)
            expect(tab.get_by_role("heading", level=2)).to_be_visible(timeout=15_000)
            assert findings(tab) == [], title
    tab.close()
