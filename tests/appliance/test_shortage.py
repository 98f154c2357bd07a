"""An appliance whose descriptors or memory are used up takes nothing new, says so, and keeps serving what it has.
One tenant cannot bring it there."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.stand_in import StandIn, Tenant
from support.system import MIB, free_port, until

from remotegpu.api.failures import ApplianceError
from remotegpu.api.quantities import Ask
from remotegpu.appliance.machine import shortage as shortage_module
from remotegpu.appliance.machine.room import Room
from remotegpu.appliance.machine.shortage import OF_SESSION, Shortage, shortage
from remotegpu.rpc.client import Access, ApplianceClient, parse_endpoint

DESCRIPTORS = 320
SHARE = Ask(memory_bytes=8 * MIB)


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


class Guarded(StandIn):
    """With few descriptors, and two users."""

    def __init__(self, dist: Path, tokens: Path) -> None:
        tokens.write_text("[admin]\nroot:zero\n[user]\nalice:one\nbob:two\n")
        self.http = f"127.0.0.1:{free_port()}"
        few = ("prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}")
        options = ("--tokens", str(tokens), "--http", self.http, "--grace", "60s", "--gpus", "4")
        super().__init__(dist, *options, access=Access("one"), prefix=few)
        self.alice = self.client
        self.bob = ApplianceClient(parse_endpoint(self.endpoint), Access("two"), call_seconds=20)
        self.root = ApplianceClient(parse_endpoint(self.endpoint), Access("zero"), call_seconds=20)

    def close(self) -> None:
        self.bob.close()
        self.root.close()
        super().close()

    def lease_of(self, client: ApplianceClient) -> Tenant:
        with client.open_lease(SHARE, "test", wait=False) as events:
            granted = next(event.granted for event in events if event.HasField("granted"))
        return Tenant(self, granted, hold=True)

    def status(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def leave(self, free: int | None) -> None:
        """Let it have so many free descriptors; None: as many as at its start."""
        soft = DESCRIPTORS if free is None else open_files(self.process.pid) + free
        subprocess.run(["prlimit", "--pid", str(self.process.pid), f"--nofile={soft}:"], check=True)


@pytest.fixture
def guarded(dist: Path, tmp_path: Path) -> Iterator[Guarded]:
    with Guarded(dist, tmp_path / "tokens") as it:
        yield it


def test_one_tenant_cannot_take_all_descriptors(guarded: Guarded) -> None:
    sessions, refused = 0, ""
    while not refused:
        assert sessions < DESCRIPTORS // OF_SESSION, "it is refused before there are none"
        lease = guarded.lease_of(guarded.alice)
        for pid in range(4):
            reply = lease.open_session(pid)
            refused = refused or reply.refusal
            if not reply.refusal:
                lease.connect(b"RGP1", reply.session_id, reply.ticket)
                sessions += 1
    assert re.search(r"alice has half of the appliance's descriptors: .*LimitNOFILE", refused)
    assert sessions >= 8
    assert guarded.status("/readyz")[0] == 200
    assert guarded.root.inventory().opens_no_session == ""
    assert guarded.lease_of(guarded.bob).session().grant(MIB) == MIB, "another tenant has his part"


def test_without_descriptors_it_takes_nothing_new_and_what_it_has_goes_on(guarded: Guarded) -> None:
    lease = guarded.lease_of(guarded.alice)
    session = lease.session()
    assert guarded.status("/readyz")[0] == 200
    guarded.leave(20)
    until(lambda: guarded.status("/readyz")[0] == 503, 10, "it is not ready for more")
    assert re.search(r"room for sessions: .*fewer than \d+ of \d+ descriptors are free", guarded.status("/readyz")[1])
    assert guarded.status("/healthz")[0] == 200, "nothing starts it anew"
    assert "descriptors are free" in guarded.root.inventory().opens_no_session
    with pytest.raises(ApplianceError, match=r"opens no lease now: .* descriptors are free"):
        guarded.lease_of(guarded.bob)
    assert session.grant(MIB) == MIB
    another = lease.session(2)
    assert another.grant(MIB) == MIB, "a program of a lease may start"
    another.close()
    guarded.leave(None)
    until(lambda: guarded.status("/readyz")[0] == 200, 10, "there are some again")
    assert guarded.lease_of(guarded.bob).session().grant(MIB) == MIB
    assert session.grant(MIB) == MIB


def room(folder: Path, used: int, limit: int = 1 << 30) -> Room:
    (folder / "memory.stat").write_text("inactive_file 0\nactive_file 0\n")
    (folder / "memory.current").write_text(str(used))
    return Room(folder, second=True, limit=limit)


def test_memory_that_is_left_is_told(tmp_path: Path) -> None:
    most = room(tmp_path, 0).most
    assert shortage([], room(tmp_path, most - 65 * MIB)) == ""
    short = "less than 64.0 MiB of memory of the appliance's container is left: "
    assert shortage([], room(tmp_path, most - 63 * MIB)).startswith(short)
    assert shortage([], room(tmp_path, most + MIB)).startswith(short)
    # It ends where there is twice as much, so that it does not come and go.
    assert shortage([], room(tmp_path, most - 127 * MIB), before=True).startswith(short)
    assert shortage([], room(tmp_path, most - 129 * MIB), before=True) == ""


def test_it_is_looked_at_once_a_second_however_often_it_is_asked() -> None:
    looks = 0
    times = (100.0, 100.5, 100.99, 101.0, 101.9, 102.0)
    clock = iter(times)

    def processes() -> list[int]:
        nonlocal looks
        looks += 1
        return []

    ask = Shortage(processes, None, lambda: next(clock))
    assert {ask() for _ in times} == {""}
    assert looks == 3


def test_what_is_short_is_told_as_long_as_it_is(tmp_path: Path) -> None:
    most = room(tmp_path, 0).most
    now = 0.0
    ask = Shortage(list, room(tmp_path, most - 63 * MIB), lambda: now)
    assert ask()
    room(tmp_path, most - 100 * MIB)  # more than it wants at first, less than ends it
    now = 1.0
    assert ask()
    room(tmp_path, most - 129 * MIB)
    assert ask(), "it was looked at in this second"
    now = 2.0
    assert ask() == ""


def test_descriptors_of_each_process_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortage_module, "_open", lambda pid, limit: limit - {1: 64, 2: 63, 3: 0}[pid])
    monkeypatch.setattr(shortage_module, "_descriptor_limit", lambda _: 4096)
    whole = room(tmp_path, 0)
    assert shortage([1], whole) == ""
    assert shortage([1, 2], whole).startswith("fewer than 64 of 4096 descriptors are free")
    assert shortage([3], whole).startswith("fewer than 64 of 4096 descriptors are free")


def test_a_process_that_has_no_descriptor_left_sees_that() -> None:
    """Without one it cannot even look how many it has."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files(os.getpid()) - 2, limits[1]))
    try:
        assert shortage([os.getpid()], None).startswith("fewer than 24 of ")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
