"""The appliance's pure rules: versions, requests, tokens, packets, checks, snapshots."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remotegpu.api.modes import ComputeMode
from remotegpu.api.objects import Share, shares_to_env
from remotegpu.api.quantities import Ask
from remotegpu.appliance.checks import ClaimsState, IdentitiesState, Situation, checks
from remotegpu.appliance.gpus.hardware import parse_snapshot
from remotegpu.appliance.leases.tokens import Holder, Role, TokenFile, parse_tokens
from remotegpu.appliance.packets import decode, whole_number
from remotegpu.appliance.refusal import RefusalError
from remotegpu.appliance.secret_files import open_to_others
from remotegpu.appliance.service import peer_and_connection, refusal_of_versions
from remotegpu.appliance.settings import Kubernetes, Settings
from remotegpu.appliance.shares.allocation import Capacity
from remotegpu.appliance.shares.asks import ask_of
from remotegpu.rpc import pb

OURS = pb.Versions(wire=1, table_hash=0xABC, program="remotegpu 0.1.0")


def test_equal_versions_fit_and_a_caller_without_frames_has_no_table() -> None:
    assert refusal_of_versions(OURS, OURS) == ""
    assert refusal_of_versions(OURS, pb.Versions(wire=1)) == ""


@pytest.mark.parametrize(
    ("oldest", "wire", "fits"),
    [(10, 11, True), (11, 12, True), (9, 10, True), (0, 11, True), (0, 10, True), (12, 13, False), (8, 9, False)],
)
def test_neighbours_fit_whatever_the_newer_one_has_besides(oldest: int, wire: int, fits: bool) -> None:
    ours = pb.Versions(wire=11, oldest=10, table_hash=0xABC, program="remotegpu 0.1.0")
    theirs = pb.Versions(wire=wire, oldest=oldest, table_hash=0xABC if wire == 11 else 0xDEF)
    assert (refusal_of_versions(ours, theirs) == "") == fits
    assert (refusal_of_versions(theirs, ours) == "") == fits


@pytest.mark.parametrize(
    ("wire", "table_hash", "upgrade"),
    [(3, 0xABC, "upgrade the appliance"), (1, 0xDEF, "the same build"), (9, 0, "upgrade the appliance")],
)
def test_other_versions_are_refused_with_both_named(wire: int, table_hash: int, upgrade: str) -> None:
    refusal = refusal_of_versions(OURS, pb.Versions(wire=wire, table_hash=table_hash))
    assert "(wire 1 to 1, table 0000000000000abc)" in refusal
    assert f"(wire {wire} to {wire}, table {table_hash:016x})" in refusal
    assert upgrade in refusal


def test_a_client_two_versions_old_is_told_to_upgrade() -> None:
    ours = pb.Versions(wire=11, oldest=10, table_hash=0xABC, program="remotegpu 0.1.0")
    refusal = refusal_of_versions(ours, pb.Versions(wire=9, table_hash=0xABC, program="remotegpu 0.0.9"))
    assert "remotegpu 0.1.0 (wire 10 to 11" in refusal
    assert "remotegpu 0.0.9 (wire 9 to 9" in refusal
    assert "upgrade the client" in refusal


def test_a_request_is_a_fraction_or_memory() -> None:
    assert ask_of(2, 250, 0) == Ask(2, 250, 0)
    assert ask_of(1, 0, 5) == Ask(1, 0, 5)


@pytest.mark.parametrize(
    ("count", "milli", "memory_bytes"),
    [(1, 0, 0), (0, 1, 0), (5000, 1, 0), (1, 1001, 0), (1, 1, 1)],
)
def test_senseless_requests_are_refused(count: int, milli: int, memory_bytes: int) -> None:
    with pytest.raises(RefusalError) as caught:
        ask_of(count, milli, memory_bytes)
    assert caught.value.code.name == "INVALID_ARGUMENT"


def test_tokens_have_names() -> None:
    holders = parse_tokens("# people\n\nalice: secret\nbob:other:with:colons\n").values()
    assert sorted(holder.name for holder in holders) == ["alice", "bob"]


@pytest.mark.parametrize(("text", "line"), [("alice", 1), ("alice:", 1), (":secret", 1), ("a:b\nc", 2)])
def test_broken_token_files_are_refused_with_the_line(text: str, line: int) -> None:
    with pytest.raises(ValueError, match=rf"\b{line}\b"):
        parse_tokens(text)


def test_the_token_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("alice:one\n")
    tokens = TokenFile(path)
    assert [tokens.holder(token) for token in ("one", "two", "")] == [Holder("alice", Role.USER), None, None]
    path.write_text("bob:second\n")
    bob = Holder("bob", Role.USER)
    assert [tokens.holder(token) for token in ("one", "second")] == [None, bob]
    path.write_text("broken\n")
    assert tokens.holder("second") == bob, "a mistake while editing locks nobody out"
    path.unlink()
    assert tokens.holder("second") == bob


def test_a_token_file_that_is_gone_is_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tokens"
    path.write_text("[admin]\nalice:one\n")
    tokens = TokenFile(path)
    for _ in range(2):
        path.unlink()
        for stranger in range(5):
            tokens.holder(str(stranger))
        path.write_text("[admin]\nalice:two\n")
        assert tokens.holder("two") == Holder("alice", Role.ADMIN)
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 2


@pytest.mark.parametrize(("mode", "is_open"), [(0o600, False), (0o640, False), (0o644, True), (0o660, True)])
def test_secrets_that_others_may_read_or_change_are_named(tmp_path: Path, mode: int, *, is_open: bool) -> None:
    secret = tmp_path / "secret"
    secret.touch()
    secret.chmod(mode)
    for settings in (Settings(tokens=secret), Settings(key=secret, cert=secret)):
        found = open_to_others(settings)
        assert found == ([secret] if is_open else [])
        assert statuses(settings, Capacity(5), open_files=found)["secret files"] == ("warn" if is_open else "ok")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_packet_or_none(data: bytes) -> None:
    packet = decode(data)
    assert packet is None or isinstance(packet, dict)


def test_deeply_nested_packets_are_refused() -> None:
    assert decode(b"[" * 60_000) is None


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner))


@given(JSON)
def test_numbers_of_a_packet_are_whole_and_small(value: object) -> None:
    assert 0 <= whole_number({"size": value}, "size") < 1 << 63
    assert whole_number({}, "size") == 0


def test_snapshot() -> None:
    device = {"name": "G", "uuid": "00" * 16, "memory_bytes": 5, "pci": [0, 1, 2], "attributes": {"1": 1024}}
    snapshot = parse_snapshot(json.dumps({"driver_version": 13040, "devices": [device]}))
    assert (snapshot.driver_version, snapshot.table_hash) == (13040, 0)
    assert snapshot.gpus[0].attributes == {1: 1024}
    assert snapshot.gpus[0].pci == (0, 1, 2)


def statuses(settings: Settings, *gpus: Capacity, **situation: Any) -> dict[str, str]:
    now = Situation(**{"settings": settings, "gpus": gpus, "overhead_bytes": 0, "root": True, **situation})
    found = list(checks(now))
    for check in found:
        assert check.message
        assert bool(check.fix) == (check.status != "ok")
    return {check.name: check.status for check in found}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("unix-abstract:remotegpu/17/10.0.0.1:4000", ("10.0.0.1:4000", 17)),
        ("unix-abstract:remotegpu/18/%5Bfe80::1%5D:4000", ("[fe80::1]:4000", 18)),
        ("unix:", ("unix:", None)),
        ("unix-abstract:other", ("unix-abstract:other", None)),
    ],
)
def test_who_is_behind_a_connection_of_the_gateway(name: str, expected: tuple[str, int | None]) -> None:
    assert peer_and_connection(name) == expected


def test_a_good_appliance_has_no_complaint() -> None:
    assert set(statuses(Settings(), Capacity(5)).values()) == {"ok"}


def test_every_risk_is_named() -> None:
    found = statuses(
        Settings(host="0.0.0.0", anybody=True), Capacity(5, unhealthy="x"), draining=True, shortage="x", root=False
    )
    assert found == {
        "gpu 0": "fail",
        "accepts leases": "fail",
        "room for sessions": "fail",
        "worker isolation": "warn",
        "encryption": "warn",
        "authentication": "warn",
        "compute share": "ok",
    }


def test_how_time_is_divided_is_told() -> None:
    for mode, said in ((ComputeMode.SHARED, "without weights"), (ComputeMode.TURNS, "by turns, as shares say")):
        now = Situation(settings=Settings(compute_mode=mode), gpus=(Capacity(5),), overhead_bytes=0, root=True)
        (told,) = (check.message for check in checks(now) if check.name == "compute share")
        assert told.endswith(said)


def test_workers_of_one_uid_are_kept_apart_by_landlock() -> None:
    assert statuses(Settings(), Capacity(5), root=False, landlock=True)["worker isolation"] == "ok"


@pytest.mark.parametrize(
    ("state", "status"),
    [(ClaimsState(True, ""), "ok"), (ClaimsState(True, "gone"), "warn"), (ClaimsState(False, "gone"), "fail")],
)
def test_claims_that_were_never_read_make_an_appliance_unready(state: ClaimsState, status: str) -> None:
    settings = Settings(host="0.0.0.0", cert=Path("tls.crt"), kubernetes=Kubernetes("appliance", "system:operator"))
    found = statuses(settings, Capacity(5), claims=state)
    assert (found["claims"], found["authentication"]) == (status, "ok")


@pytest.mark.parametrize(("trouble", "status"), [("", "ok"), ("no route", "warn")])
def test_for_how_long_an_identity_is_believed_is_said(trouble: str, status: str) -> None:
    claims = ClaimsState(True, "")
    now = Situation(Settings(), [Capacity(5)], 0, root=True, claims=claims, identities=IdentitiesState(600, trouble))
    found = next(check for check in checks(now) if check.name == "identities")
    assert found.status == status
    assert "600 s" in found.message


def test_one_well_gpu_is_enough() -> None:
    found = statuses(Settings(), Capacity(5, unhealthy="x"), Capacity(5))
    assert (found["gpu 0"], found["gpu 1"]) == ("warn", "ok")
    assert statuses(Settings())["gpus"] == "fail"


def test_shares_in_the_environment() -> None:
    text = shares_to_env([Share("host:1", "ab", "cd"), Share("host:2", "ef", "01", "/ca.pem", "name")])
    given = {"endpoint": "host:1", "lease_id": "ab", "lease_secret": "cd"}
    also = {"endpoint": "host:2", "lease_id": "ef", "lease_secret": "01", "ca": "/ca.pem", "server_name": "name"}
    assert json.loads(text) == [given | {"ca": None, "server_name": None, "asking": None}, also | {"asking": None}]
    assert os.linesep not in text
