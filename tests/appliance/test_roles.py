"""Tokens of administrators and of users: who sees whose leases, and who may drain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from support.stand_in import StandIn

from remotegpu.api.quantities import Ask
from remotegpu.appliance.leases.tokens import Holder, Role, TokenFile, parse_tokens
from remotegpu.rpc import pb
from remotegpu.rpc.client import Access, ApplianceClient, parse_endpoint

SHARE = Ask(milli_per_gpu=100)
TOKENS = "[admin]\nroot:one\n\n[user]\nalice:two\nbob:three:with:colons\n"


@pytest.fixture
def served(dist: Path, tmp_path: Path) -> Iterator[StandIn]:
    """For alice."""
    (tmp_path / "tokens").write_text(TOKENS)
    with StandIn(dist, "--tokens", str(tmp_path / "tokens"), access=Access("two")) as it:
        yield it


def of(appliance: StandIn, token: str) -> ApplianceClient:
    client = ApplianceClient(parse_endpoint(appliance.endpoint), Access(token), call_seconds=20)
    appliance.open_connections.callback(client.close)
    return client


def test_users_see_their_own_leases_and_administrators_all(served: StandIn) -> None:
    lease = served.lease(SHARE)
    alice, bob, root = served.client, of(served, "three:with:colons"), of(served, "one")
    seen = [[lease.lease_id for lease in client.inventory().leases] for client in (alice, bob, root)]
    assert seen == [[lease.granted.lease_id], [], [lease.granted.lease_id]]
    free = {gpu.shareable_bytes - gpu.leased_bytes for client in (alice, bob, root) for gpu in client.inventory().gpus}
    assert len(free) == 1, "what is free all may know: `remotegpu run` looks for a place by it"
    assert bob.health().ready


def test_only_administrators_drain(served: StandIn) -> None:
    def drain(token: str) -> None:
        metadata = (("authorization", f"Bearer {token}"),)
        served.client._stub.Drain(pb.DrainRequest(deadline_seconds=60), metadata=metadata, timeout=20)

    lease = served.lease(SHARE)
    for token, code in (
        ("two", grpc.StatusCode.PERMISSION_DENIED),
        ("three:with:colons", grpc.StatusCode.PERMISSION_DENIED),
        ("wrong", grpc.StatusCode.UNAUTHENTICATED),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            drain(token)
        assert refused.value.code() is code
    assert not served.client.inventory().draining
    drain("one")
    assert served.client.inventory().draining
    lease.let_go()
    assert served.process.wait(20) == 0


def test_a_refused_token_is_in_the_log(served: StandIn) -> None:
    stranger = of(served, "wrong")
    calls = 150
    for _ in range(calls):
        with pytest.raises(Exception, match="token"):
            stranger.inventory()
    assert "audit: refused Inventory from 127.0.0.1:" in served.log
    assert 0 < served.log.count("audit: refused Inventory") < calls


def test_tokens_of_a_file_without_sections_are_users(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tokens"
    path.write_text("# an old one\nalice:one\n")
    with caplog.at_level("WARNING"):
        assert TokenFile(path).holder("one") == Holder("alice", Role.USER)
    assert "[admin]" in caplog.text
    path.write_text(TOKENS)
    tokens = TokenFile(path)
    assert tokens.holder("one") == Holder("root", Role.ADMIN)
    assert tokens.holder("three:with:colons") == Holder("bob", Role.USER)
    assert tokens.holder("four") is None


@pytest.mark.parametrize("text", ["[root]\na:b\n", "[admin\na:b\n", "no colon\n", ":token\n", "name:\n"])
def test_what_is_no_token_file_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="line 1"):
        parse_tokens(text)
