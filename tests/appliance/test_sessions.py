"""Sessions: a worker each, no more than the lease's memory together, nothing of ours in a tenant's reach."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from support.stand_in import LOST, Session, StandIn, Tenant, all_back, make_dist
from support.system import until

from remotegpu.api.failures import ApplianceError, Failure
from remotegpu.api.quantities import Ask
from remotegpu.rpc import pb

MIB = 1 << 20
SHARE = 256 * MIB


@pytest.fixture
def tenant(appliance: StandIn) -> Iterator[Tenant]:
    with all_back(appliance):
        lease = appliance.lease(Ask(milli_per_gpu=250))
        yield lease
        lease.close()


def used(appliance: StandIn) -> int:
    return sum(gpu.used_bytes for gpu in appliance.gpus)


def test_sessions_of_a_lease_share_its_memory(appliance: StandIn, tenant: Tenant) -> None:
    first, second = tenant.session(1), tenant.session(2)
    assert first.grant(SHARE - 8 * MIB) == SHARE - 8 * MIB
    assert second.ask("memory 0") | {"id": 0} == {
        "op": "memory",
        "id": 0,
        "limit": SHARE,
        "free": 8 * MIB,
    }
    assert second.grant(9 * MIB) == 0
    assert second.grant(8 * MIB, want=64 * MIB) == 8 * MIB
    assert used(appliance) == SHARE
    first.tell(f"return 0 {4 * MIB}")
    until(lambda: used(appliance) == SHARE - 4 * MIB, 5, "the memory is given back")


def test_plenty_is_granted_generously(tenant: Tenant) -> None:
    assert tenant.session().grant(2 * MIB, want=32 * MIB) == 32 * MIB


def test_four_processes_get_the_share_together(tenant: Tenant) -> None:
    def allocate(session: Session) -> int:
        total = 0
        while size := session.grant(2 * MIB, want=16 * MIB):
            total += size
        return total

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(allocate, [tenant.session(number) for number in range(4)])) == SHARE


def test_a_session_that_ends_gives_its_memory_back(appliance: StandIn, tenant: Tenant) -> None:
    session = tenant.session()
    session.grant(100 * MIB)
    session.close()
    until(lambda: used(appliance) == 0, 5, "its memory is back")


BACK = 'raw {"op": "connection", "connected": true}'


def test_a_session_without_a_connection_gives_way_to_its_lease(appliance: StandIn, tenant: Tenant) -> None:
    lost, other = tenant.session(1), tenant.session(2)
    assert lost.grant(SHARE - 8 * MIB) == SHARE - 8 * MIB
    lost.ask(LOST)
    until(lambda: other.ask("memory 0")["free"] == SHARE, 5, "what it has counts as free")
    # More than that does not end it.
    assert other.grant(SHARE + MIB) == 0
    assert other.grant(SHARE) == SHARE
    assert "needed its place" in lost.rest()
    assert used(appliance) == SHARE


def test_a_session_whose_connection_is_back_does_not_give_way(tenant: Tenant) -> None:
    lost, other = tenant.session(1), tenant.session(2)
    assert lost.grant(SHARE - 8 * MIB) == SHARE - 8 * MIB
    lost.ask(LOST)
    until(lambda: other.ask("memory 0")["free"] == SHARE, 5, "its connection is lost")
    with ThreadPoolExecutor(1) as pool:
        granted = pool.submit(other.grant, 9 * MIB)
        lost.ask(BACK)
        assert granted.result() == 0
    assert lost.grant(8 * MIB) == 8 * MIB


def test_a_place_of_a_session_without_a_connection_is_free_for_its_lease(dist: Path) -> None:
    with StandIn(dist, "--sessions-per-lease", "2") as appliance:
        lease = appliance.lease(Ask(milli_per_gpu=250))
        lost, other = lease.session(1), lease.session(2)
        assert "--sessions-per-lease" in lease.open_session(3).refusal
        lost.ask(LOST)
        until(lambda: not lease.open_session(4).refusal, 20, "it gives way")
        assert "needed its place" in lost.rest()
        assert other.grant(MIB) == MIB


def test_a_killed_worker_hurts_nobody_else(appliance: StandIn, tenant: Tenant) -> None:
    victim, bystander = tenant.session(1), tenant.session(2)
    bystander.grant(10 * MIB)
    victim.grant(100 * MIB)
    victim.tell(f"die {int(signal.SIGKILL)}")
    assert victim.rest() == "", "its connection ends"
    until(lambda: used(appliance) == 10 * MIB, 5, "its memory is back")
    assert bystander.grant(200 * MIB) == 200 * MIB


def test_a_worker_sees_nothing_of_ours(dist: Path) -> None:
    """No token, no path, no other socket; only what the driver needs."""
    env = {"REMOTEGPU_TOKEN": "secret", "AWS_SECRET_ACCESS_KEY": "secret", "REMOTEGPU_LOG": "info"}
    with StandIn(dist, env=env) as appliance:
        session = appliance.lease(Ask(milli_per_gpu=250)).session()
        seen = session.ask("environ")
        uuid = seen.pop("CUDA_VISIBLE_DEVICES")
        assert uuid == appliance.gpus[0].uuid
        # Python and the shell that start the stand-in add these.
        extra = {"LC_CTYPE", "PWD", "SHLVL", "_", "OLDPWD"}
        assert set(seen) - extra == {
            "PATH",
            "LANG",
            "REMOTEGPU_LOG",
            "REMOTEGPU_SOFTGPU_DEVICES",
            "REMOTEGPU_SOFTGPU_UUIDS",
            "REMOTEGPU_SOFTGPU_MEMORY",
            "REMOTEGPU_SOFTGPU_PROFILE",
        }
        assert "secret" not in json.dumps(seen)
        identity = session.ask("identity")
        assert identity["cwd"] == "/"
        assert identity["sockets"] == 3, "control, data and the connection"
        # A worker sets the hard limit of cores itself, to what keeps it dumpable and writes none.
        assert identity["limits"]["core"][0] == 0
        assert identity["limits"]["nofile"] == [4096, 4096]


@pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/usr/bin/python3", os.X_OK),
    reason="only root can give workers a uid of their own, and they need a Python that all can read",
)
def test_each_session_has_its_own_uid() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        dist = make_dist(Path(folder) / "dist", "/usr/bin/python3")
        with StandIn(dist, "--uid-base", "61000") as appliance:
            lease = appliance.lease(Ask(milli_per_gpu=250))
            identities = [lease.session(number).ask("identity") for number in range(3)]
    assert [(identity["uid"], identity["gid"]) for identity in identities] == [(n, n) for n in (61000, 61001, 61002)]
    assert all(identity["groups"] == [] for identity in identities)


@pytest.mark.parametrize(
    "packet",
    [
        '{"op":"grant","id":1,"device":7,"least":1,"want":1}',
        '{"op":"grant","id":1,"device":0,"least":-5,"want":"x"}',
        '{"op":"return","device":0,"size":1e300}',
        '{"op":"return","device":0,"size":99999999999999}',
        '{"op":"stats","commands":-1}',
        '{"op":"unhealthy","device":0,"code":"x","message":["deep"]}',
        '{"op":"log","line":null}',
        '{"op":"session","id":"x"}',
        '{"op":5}',
        "[]",
        "nonsense",
        "{",
    ],
)
def test_a_lying_worker_harms_only_itself(appliance: StandIn, tenant: Tenant, packet: str) -> None:
    liar, honest = tenant.session(1), tenant.session(2)
    honest.grant(10 * MIB)
    liar.tell(f"raw {packet}")
    assert honest.ask("memory 0")["free"] <= SHARE - 10 * MIB
    assert all(gpu.healthy for gpu in appliance.gpus), "a tenant cannot take a GPU away from others"


def test_a_worker_that_does_not_start_is_reported(dist: Path) -> None:
    with StandIn(dist, env={"REMOTEGPU_LOG": "broken"}) as appliance:
        lease = appliance.lease(Ask(milli_per_gpu=250))
        reply = lease.open_session()
        assert "the worker ended at its start (exit code 3)" in reply.refusal
        assert appliance.client.inventory().leases[0].sessions == 0


def test_limits(dist: Path) -> None:
    options = ("--sessions-per-lease", "2", "--sessions-per-gpu", "3", "--max-leases", "2")
    with StandIn(dist, *options) as appliance:
        one, two = appliance.lease(Ask(milli_per_gpu=250)), appliance.lease(Ask(milli_per_gpu=250))
        with pytest.raises(ApplianceError) as refused:
            appliance.lease(Ask(milli_per_gpu=250))
        assert refused.value.failure is Failure.BUSY
        with ThreadPoolExecutor(8) as pool:
            replies = list(pool.map(one.open_session, range(8)))
        refusals = [reply.refusal for reply in replies if reply.refusal]
        assert len(refusals) == 6
        assert all("limit of 2 sessions" in refusal for refusal in refusals)
        assert not two.open_session().refusal
        assert "gpu 0 has its limit of 3 sessions" in two.open_session().refusal


def test_a_client_of_another_version_gets_no_session(tenant: Tenant) -> None:
    reply = tenant.open_session(table_hash=8)
    assert "table 0000000000000007" in reply.refusal
    assert "table 0000000000000008" in reply.refusal


def test_a_session_that_nobody_connects_to_ends(appliance: StandIn, tenant: Tenant) -> None:
    assert not tenant.open_session().refusal
    assert appliance.client.inventory().leases[0].sessions == 1
    until(lambda: appliance.client.inventory().leases[0].sessions == 0, 20, "the worker is gone")


def test_a_ticket_is_good_once(tenant: Tenant) -> None:
    reply = tenant.open_session()
    assert (
        Session(tenant.appliance, tenant.connect(b"RGP1", reply.session_id, reply.ticket), reply).ask("memory 0")[
            "limit"
        ]
        == SHARE
    )
    with pytest.raises(ConnectionRefusedError):
        tenant.connect(b"RGP1", reply.session_id, reply.ticket)


def test_a_session_can_be_closed_by_its_client(tenant: Tenant) -> None:
    session = tenant.session()
    session.grant(MIB)
    stub = tenant.appliance.client._stub
    with pytest.raises(grpc.RpcError) as refused:
        stub.CloseSession(pb.CloseSessionRequest(session_id=session.reply.session_id, lease_secret="00"))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    secret = tenant.granted.lease_secret
    request = pb.CloseSessionRequest(session_id=session.reply.session_id, lease_secret=secret)
    assert stub.CloseSession(request).exit_code == 0
    assert '"op": "end"' in session.rest()
    # Once more does no harm.
    assert stub.CloseSession(request).exit_code == 0


@pytest.mark.parametrize("reaped", [False, True])
def test_whoever_closes_a_session_hears_how_its_process_died(tenant: Tenant, reaped: bool) -> None:
    session = tenant.session()
    session.tell(f"die {int(signal.SIGKILL)}")
    assert session.rest() == "", "its connection ends"
    if reaped:
        until(lambda: not tenant.appliance.client.inventory().leases[0].sessions, 60, "the session has ended")
    request = pb.CloseSessionRequest(session_id=session.reply.session_id, lease_secret=tenant.granted.lease_secret)
    assert tenant.appliance.client._stub.CloseSession(request).exit_code == -signal.SIGKILL


def test_nvml_shows_the_processes_of_the_lease_only(appliance: StandIn, tenant: Tenant) -> None:
    other = appliance.lease(Ask(milli_per_gpu=100))
    other.session(77).grant(2 * MIB)
    tenant.session(11).grant(5 * MIB)
    tenant.session(12).grant(7 * MIB)
    granted = tenant.granted
    reply = appliance.client._stub.DeviceState(
        pb.DeviceStateRequest(lease_id=granted.lease_id, lease_secret=granted.lease_secret)
    )
    (state,) = reply.devices
    assert state.memory_used_bytes == 12 * MIB
    processes = {(process.pid, process.name, process.memory_bytes) for process in state.processes}
    assert processes == {(11, "process 11", 5 * MIB), (12, "process 12", 7 * MIB)}
    assert not state.HasField("temperature_celsius"), "what is not known is not made up"
    other.close()


def test_a_session_has_so_many_lines_of_the_log_and_others_have_theirs(appliance: StandIn, tenant: Tenant) -> None:
    """A worker counts too, but it may be under its tenant's control."""
    loud, quiet = tenant.session(31), tenant.session(32)
    for number in range(1000):
        loud.ask(f'raw {{"op": "log", "line": "loud {number}"}}')
    assert loud.grant(2 * MIB) == 2 * MIB, "all before it was heard"
    quiet.ask('raw {"op": "log", "line": "quiet"}')
    assert quiet.grant(2 * MIB) == 2 * MIB
    said = [line for line in appliance.log.splitlines() if loud.reply.session_id[:8] in line]
    assert [sum("loud" in line for line in said), sum("no more are kept" in line for line in said)] == [200, 1]
    assert sum("quiet" in line for line in appliance.log.splitlines()) == 1
    for number in range(100):
        quiet.ask(f'raw {{"op": "unhealthy", "device": 0, "code": 1, "message": "broken {number}"}}')
    assert quiet.grant(2 * MIB) == 2 * MIB
    assert appliance.log.count("broken ") == 8
