"""The dashboard's answers by caller, with a real API server's roles and tokens."""

from __future__ import annotations

import contextlib
import json
import socket

import pytest
import urllib3
from support.dashboard import GPU, Page, may, sent
from support.system import until


def test_the_page_comes_to_everybody_and_allows_its_own_scripts_alone(page: Page) -> None:
    for path in ("/", "/static/app.js", "/static/vendor/htm.js", "/api/snapshot", "/nowhere"):
        headers = page.get(path).headers
        policy = dict(each.split(" ", 1) for each in headers["Content-Security-Policy"].split("; "))
        assert (policy["default-src"], policy["frame-ancestors"], policy["form-action"]) == ("'none'",) * 3, path
        assert {policy[each] for each in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}, path
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
    html = page.get("/").data.decode()
    assert "static/app.js" in html
    assert "http:" not in html and "https:" not in html and "<style" not in html and "onload" not in html


@pytest.mark.parametrize(
    "path",
    [
        "/api/snapshot",
        "/api/events",
        "/api/load",
        "/api/usage?range=day&by=claim",
        *(f"/api/claims/team-a/train/{each}" for each in ("events", "why", "usage")),
    ],
)
def test_without_a_good_token_there_is_nothing(page: Page, path: str) -> None:
    for token, said in (("", "there is no token"), ("not-a-token", "the API server refuses the token")):
        response = page.get(path, token)
        assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert said in response.json()["error"]
        assert "train" not in response.data.decode()


def test_a_token_for_somebody_else_is_none_for_us(page: Page, everything: str) -> None:
    assert page.get("/api/snapshot", everything).status == 200
    meant_for_appliances = page.server.token("remotegpu-system", "reader", "remotegpu.io")
    assert page.get("/api/snapshot", meant_for_appliances).status == 401


def test_a_user_without_rights_is_refused_with_what_to_do(page: Page) -> None:
    token = page.account("stranger", "elsewhere", may("list", "gpuclaims"))
    response = page.get("/api/snapshot", token)
    assert response.status == 403
    assert "system:serviceaccount:elsewhere:stranger may list neither" in response.json()["error"]
    assert "train" not in response.data.decode()


def test_a_reader_of_everything_sees_pools_claims_and_events(page: Page, everything: str) -> None:
    found = page.snapshot(everything)
    (pool,) = found["pools"]
    assert pool["appliances"][0]["gpus"][0]["uuid"] == GPU
    assert found["claims"].keys() >= {"team-a/train", "team-b/secret-project"}
    assert found["claims"]["team-a/train"]["shares"] == [{"appliance": "a", "gpu": GPU, "memory": 256 << 20}]
    about = {"kind": "GPUClaim", "name": "train", "namespace": "team-a"}
    event = {"metadata": {"name": "one"}, "involvedObject": about, "reason": "Tested", "message": "it is told"}
    page.kube("POST", "/api/v1/namespaces/team-a/events", event)
    told = page.get("/api/claims/team-a/train/events", everything).json()
    assert [(each["reason"], each["message"]) for each in told["events"]] == [("Tested", "it is told")]
    assert page.get("/api/claims/team-a/train/why", everything).json()["phase"] == "Allocated"
    assert page.get("/api/claims/team-a/nothing/why", everything).status == 404


def test_who_may_list_one_namespace_sees_nothing_of_another(page: Page, of_team_a: str) -> None:
    response = page.get("/api/snapshot", of_team_a)
    found = response.json()
    assert found["pools"] == []
    assert {claim["namespace"] for claim in found["claims"].values()} == {"team-a"}
    assert "team-b" not in response.data.decode() and "secret-project" not in response.data.decode()
    # The holders of what it waits for may be of other namespaces, and events are another right.
    assert page.get("/api/claims/team-a/train/why", of_team_a).json() is None
    told = page.get("/api/claims/team-a/train/events", of_team_a).json()
    assert told["events"] == []
    assert "events is forbidden" in told["problem"]
    names = ("secret-project", "none")
    hidden, missing = (page.get(f"/api/claims/team-b/{name}/events", of_team_a) for name in names)
    assert (hidden.status, missing.status) == (404, 404)
    assert hidden.data.replace(b"secret-project", b"none") == missing.data


def test_a_right_that_is_taken_away_ends_what_is_shown(page: Page) -> None:
    token = page.account("leaver", "team-a", may("list", "gpuclaims"))
    assert page.get("/api/snapshot", token).status == 200
    page.server.kubectl("delete", "rolebinding", "leaver", "-n", "team-a")
    until(lambda: page.get("/api/snapshot", token).status == 403, 40, "it is refused")


def test_changes_come_by_themselves_and_only_those_one_may_see(page: Page, of_team_a: str) -> None:
    stream = urllib3.request(
        "GET",
        f"{page.url}/api/events",
        headers={"X-Remotegpu-Token": of_team_a},
        preload_content=False,
        retries=False,
        timeout=30,
    )
    assert (stream.status, stream.headers["Content-Type"]) == (200, "text/event-stream")
    messages = sent(stream.stream(1 << 16))
    first = next(messages)
    assert "team-a/train" in first["claims"]
    page.claim("team-b", "hidden")
    page.claim("team-a", "shown")
    assert next(messages)["changes"]["claims"].keys() == {"team-a/shown"}
    page.kube("DELETE", "/apis/remotegpu.io/v1alpha1/namespaces/team-b/gpuclaims/hidden")
    page.kube("DELETE", "/apis/remotegpu.io/v1alpha1/namespaces/team-a/gpuclaims/shown")
    # Its place in the queue may have changed before, when the other claim went.
    for message in messages:
        assert "hidden" not in json.dumps(message)
        if message["changes"].get("gone") == ["team-a/shown"]:
            break
    stream.close()


def test_another_sites_page_can_neither_read_nor_write(page: Page, everything: str) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        response = page.get("/api/snapshot", everything, method, Origin="https://elsewhere.example")
        assert response.status == 405
        assert not [name for name in response.headers if name.startswith("Access-Control-")]
    # No cookie is set, and neither a cookie nor the address carries a token.
    assert "Set-Cookie" not in page.get("/", everything).headers
    assert page.get(f"/api/snapshot?token={everything}", Cookie=f"token={everything}").status == 401


def test_one_user_has_so_many_pages_and_one_peer_so_many_connections(page: Page, everything: str) -> None:
    port = int(page.url.rpartition(":")[2])
    with contextlib.ExitStack() as held:
        # A connection without requests makes room.
        for _ in range(300):
            held.enter_context(socket.create_connection(("127.0.0.1", port), 20))
        assert page.get("/api/snapshot", everything).status == 200
        headers, answers = {"Authorization": f"Bearer {everything}"}, []
        with urllib3.PoolManager(maxsize=40) as pool:
            for _ in range(33):
                url = f"{page.url}/api/events"
                answers.append(pool.request("GET", url, headers=headers, preload_content=False, retries=False))
            assert [each.status for each in answers] == [200] * 32 + [503]
            assert "32 of one user" in answers[-1].json()["error"]
            assert page.get("/api/snapshot", everything).status == 200
            for each in answers:
                each.close()
    until(lambda: _opens(page, everything), 20, "closed pages make room")


def _opens(page: Page, token: str) -> bool:
    headers = {"Authorization": f"Bearer {token}"}
    answer = urllib3.request("GET", f"{page.url}/api/events", headers=headers, preload_content=False, retries=False)
    answer.close()
    return answer.status == 200
