"""An environment for CUDA has its GPU through the client and a worker, as every program has: what a session's code does
in its acceptor is within the lease's budget, on the lease's devices, and no device node is to be seen."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from offload_appliance import PATIENCE, lease, open_session, session
from offload_cuda import DRIVER, GPU_MIB, MIB, cuda, cuda_appliance, local_cuda, share_variables
from support.stand_in import StandIn, Tenant
from support.system import until

from remotegpu.api.quantities import Ask
from remotegpu.paths import find_dist
from remotegpu_offload.wire.peer import Peer

QUARTER = Ask(1, 250)
SHARE = GPU_MIB * MIB // 4
OUT_OF_MEMORY, EXTERNAL_DEVICE = 2, 911
# What looks like a GPU's device node. The folder is the machine's, so the name is this process's own.
NODE = Path(f"/dev/nvidia-remotegpu-test-{os.getpid()}")


@pytest.fixture(scope="module")
def node() -> Iterator[Path]:
    """A file that a sandbox would show if it admitted NVIDIA's nodes."""
    try:
        NODE.write_text("the GPU itself")
    except OSError:
        pytest.skip("no file can be made in /dev: this needs root")
    NODE.chmod(0o666)
    yield NODE
    NODE.unlink()


@pytest.fixture(scope="module", params=["namespaces", "alone", *(["user"] if os.geteuid() == 0 else [])])
def appliance(request: pytest.FixtureRequest) -> Iterator[StandIn]:
    stranger = 60_000 + os.getpid() % 3000 if request.param == "user" else None
    with cuda_appliance(alone=request.param == "alone", stranger=stranger) as it:
        yield it


@pytest.fixture
def tenant(appliance: StandIn) -> Iterator[Tenant]:
    with lease(appliance, QUARTER) as it:
        yield it


@pytest.fixture
def acceptor(tenant: Tenant) -> Iterator[Peer]:
    with session(tenant) as peer:
        yield peer


def used(appliance: StandIn) -> int:
    return sum(gpu.used_bytes for gpu in appliance.gpus)


def sessions(appliance: StandIn) -> int:
    return sum(one.sessions for one in appliance.client.inventory().leases)


def is_alone(appliance: StandIn) -> bool:
    """Sessions have no namespaces."""
    checks = {check.name: check.message for check in appliance.client.health().checks}
    return "by alone" in checks["environment hostile: isolation"]


def workers(appliance: StandIn) -> list[int]:
    command = ["pgrep", "-P", str(appliance.process.pid), "-f", "remotegpu-worker"]
    return [int(pid) for pid in subprocess.run(command, capture_output=True, text=True).stdout.split()]


def test_the_environment_is_found_by_its_driver(appliance: StandIn, tenant: Tenant) -> None:
    """This Python has no torch; its self-test computes with the driver, on a session of its own."""
    reply = open_session(tenant, backends=["cuda"])
    assert reply.refusal == ""
    assert reply.environment.backend == "cuda"
    assert len(reply.environment.devices) == 2
    health = {check.name: check.status for check in appliance.client.health().checks}
    assert health["environment hostile"] == health["environment hostile: devices"] == "ok"


def test_the_self_test_leaves_nothing(appliance: StandIn) -> None:
    until(lambda: not workers(appliance), PATIENCE, "its worker has ended")
    assert used(appliance) == sessions(appliance) == 0


def test_a_session_cannot_take_more_than_its_share(appliance: StandIn, acceptor: Peer) -> None:
    taken, code = cuda(acceptor, f"start(); value = take_all({8 * MIB})")
    assert code == OUT_OF_MEMORY
    assert 0 < taken <= SHARE
    assert taken <= used(appliance) <= SHARE
    # What a driver of its own would need is not to be had, whatever the code sets.
    tricks = """
import os
os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
"""
    assert cuda(acceptor, tricks + f"start(); value = take_all({2 * MIB})[1]") == OUT_OF_MEMORY
    assert used(appliance) <= SHARE


def test_a_session_sees_no_other_gpu(appliance: StandIn, tenant: Tenant) -> None:
    with lease(appliance, QUARTER) as other, session(tenant) as peer:
        forged = f"""
import json, os
os.environ.pop("CUDA_VISIBLE_DEVICES", None)
shares = json.loads(os.environ["REMOTEGPU_SHARES"])
found = {other.granted.lease_id!r}
os.environ["REMOTEGPU_SHARES"] = json.dumps([dict(shares[0], lease_id=lease, lease_secret=secret)
    for lease, secret in (("00" * 16, ""), (found, {other.granted.lease_secret!r}), (found, ""))])
"""
        # Whatever lease it names, it has its own: three times the same.
        code = "check('cuInit', 0); value = [uuid(number) for number in range(devices())]"
        seen = cuda(peer, forged + code)
    own = {bytes(device.uuid).hex() for device in tenant.granted.devices}
    assert len(own) == 1
    assert set(seen) == own


def test_no_device_node_is_to_be_seen(node: Path, acceptor: Peer) -> None:
    code = f"""
import os
value = []
for flags in (os.O_RDONLY, os.O_RDWR):
    try:
        os.close(os.open({str(node)!r}, flags))
        value.append("opened")
    except OSError as error:
        value.append(type(error).__name__)
"""
    assert cuda(acceptor, code) in (["FileNotFoundError"] * 2, ["PermissionError"] * 2)
    secrets = "import os; value = [v for v in os.environ.values() if 'lease_secret' in v]"
    (variable,) = cuda(acceptor, secrets)
    assert [share["lease_secret"] for share in json.loads(variable)] == [""]


def test_the_old_way_limits_nothing_and_warns(node: Path) -> None:
    """The positive control of the tests before: a driver in the session's own process, and the device nodes."""
    with cuda_appliance(backend="cuda,direct", libraries=find_dist().native) as it, lease(it, QUARTER) as tenant:
        (check,) = (one for one in it.client.health().checks if one.name == "environment hostile: devices")
        assert check.status == "warn"
        assert check.fix
        with session(tenant) as peer:
            taken = cuda(peer, f"start(); value = [take({SHARE}) for _ in range(2)]")
            assert all(taken)
            assert used(it) == 0
            opened = f"import os; value = os.read(os.open({str(node)!r}, os.O_RDONLY), 100).decode()"
            assert cuda(peer, opened) == node.read_text()
        assert not workers(it)


def test_one_budget_for_both_kinds_of_session(appliance: StandIn, tenant: Tenant) -> None:
    half = f"start(); take({SHARE // 2}); print('taken', flush=True); input()"
    variables = share_variables(appliance, tenant.granted.lease_id, tenant.granted.lease_secret)
    program = subprocess.Popen(
        local_cuda(half), env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with program, session(tenant) as peer:
        assert program.stdout is not None
        assert program.stdout.readline() == "taken\n"
        taken, code = cuda(peer, f"start(); value = take_all({8 * MIB})")
        assert code == OUT_OF_MEMORY
        assert 0 < taken <= SHARE // 2
        assert SHARE // 2 + taken <= used(appliance) <= SHARE
        # The program's worker, the acceptor, and the acceptor's worker, all of one lease.
        listed = json.loads(appliance.cli("ls", "--json").stdout)["appliances"][0]["leases"]
        assert [one["sessions"] for one in listed if one["lease_id"] == tenant.granted.lease_id] == [3]
        assert len(workers(appliance)) == 2
        program.communicate("end\n", timeout=PATIENCE)
        # What the program had is free for the acceptor.
        until(lambda: used(appliance) <= SHARE // 2 + 16 * MIB, PATIENCE, "its memory is back")
        more, code = cuda(peer, f"start(); value = take_all({8 * MIB})")
        assert code == OUT_OF_MEMORY
        assert more > 0
        assert used(appliance) <= SHARE
    until(lambda: used(appliance) == sessions(appliance) == 0, PATIENCE, "all is back")


def test_programs_that_a_session_starts_are_within_its_share(appliance: StandIn, tenant: Tenant) -> None:
    if is_alone(appliance):
        pytest.skip("it may start none")
    child = "start(); print(devices(), uuid(), take_all(8 << 20)[0], flush=True); input()"
    code = f"""
import subprocess, sys
kept = subprocess.Popen([sys.executable, "-c", {DRIVER + child!r}],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
said = kept.stdout.readline().split()
kept.communicate("end\\n")
value = said
"""
    with session(tenant) as peer:
        cuda(peer, f"start(); value = take({SHARE // 2})")
        count, uuid, taken = cuda(peer, code)
        assert (count, uuid) == ("1", bytes(tenant.granted.devices[0].uuid).hex())
        assert 0 < int(taken) <= SHARE // 2
    until(lambda: used(appliance) == sessions(appliance) == 0, PATIENCE, "all is back")


def test_a_worker_that_dies_is_an_error_of_cuda(appliance: StandIn, tenant: Tenant) -> None:
    with session(tenant) as peer:
        cuda(peer, "start(); take(1 << 20); value = None")
        (worker,) = workers(appliance)
        os.kill(worker, signal.SIGKILL)
        until(lambda: not workers(appliance), PATIENCE, "it is gone")
        # Once the client has read the end of its connection, all calls say so; the acceptor itself lives.
        until(lambda: cuda(peer, "value = code('cuCtxSynchronize')") == EXTERNAL_DEVICE, PATIENCE, "it is told")
        assert cuda(peer, "value = 1") == 1
        until(lambda: "died (signal 9)" in appliance.log, PATIENCE, "it is in the log")
    with session(tenant) as peer:
        assert cuda(peer, "start(); value = take(1 << 20) > 0")
    assert appliance.process.poll() is None


def test_an_acceptor_that_dies_takes_its_worker_along(appliance: StandIn, tenant: Tenant) -> None:
    with session(tenant) as peer:
        cuda(peer, f"start(); value = take({64 * MIB})")
        assert len(workers(appliance)) == 1
        assert used(appliance) >= 64 * MIB
        with contextlib.suppress(Exception):
            cuda(peer, "import os; os.kill(os.getpid(), 9)")
    until(lambda: used(appliance) == sessions(appliance) == 0, PATIENCE, "memory and sessions are back")
    until(lambda: not workers(appliance), PATIENCE, "the worker has ended")


def test_the_end_of_the_lease_ends_both(appliance: StandIn) -> None:
    with lease(appliance, QUARTER) as tenant, session(tenant) as peer:
        cuda(peer, "start(); value = take(1 << 20)")
        tenant.let_go()
        assert peer.closed.wait(PATIENCE)
    until(lambda: not workers(appliance) and used(appliance) == 0, PATIENCE, "both have ended")


def test_a_gateway_that_was_started_again_gives_connections(appliance: StandIn, tenant: Tenant) -> None:
    with session(tenant) as peer:
        assert cuda(peer, "value = 1") == 1
        command = ["pgrep", "-P", str(appliance.process.pid), "-f", "remotegpu-gateway"]
        before = subprocess.run(command, capture_output=True, text=True).stdout
        os.kill(int(before), signal.SIGKILL)

        def another() -> bool:
            now = subprocess.run(command, capture_output=True, text=True).stdout
            return bool(now) and now != before

        until(another, PATIENCE, "another gateway runs")
        until(lambda: cuda(peer, "value = code('cuInit', 0)") == 0, PATIENCE, "it is reached")
        assert cuda(peer, "start(); value = take(1 << 20) > 0")


# A way for gRPC: a port of the session's own loopback, behind which is what the gateway hands out.
CALLS = """
import array, json, os, socket, threading
import grpc

way = socket.socket(fileno=os.dup(json.loads(os.environ["REMOTEGPU_SHARES"])[0]["asking"]["fd"]))

def connection():
    way.send(b"{}")
    _, ancillary, _, _ = way.recvmsg(16, socket.CMSG_LEN(4))
    return socket.socket(fileno=array.array("i", ancillary[0][2])[0])

def copy(source, target):
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
    except OSError:
        pass
    target.close()

def proxy(listening):
    while True:
        near, _ = listening.accept()
        far = connection()
        threading.Thread(target=copy, args=(near, far), daemon=True).start()
        threading.Thread(target=copy, args=(far, near), daemon=True).start()

listening = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=proxy, args=(listening,), daemon=True).start()
channel = grpc.insecure_channel("127.0.0.1:%d" % listening.getsockname()[1])

def call(name, data=b""):
    try:
        method = channel.unary_unary("/remotegpu.v1.Control/" + name, lambda x: x, lambda x: x)
        return len(method(data, timeout=20))
    except grpc.RpcError as error:
        return error.code().name
"""


def test_an_acceptor_may_use_its_lease_and_nothing_else(appliance: StandIn, tenant: Tenant) -> None:
    if is_alone(appliance):
        pytest.skip("it may not listen, so gRPC cannot be led there")
    names = ["Inventory", "Health", "Drain", "CloseLease", "CloseSession"]
    with session(tenant) as peer:
        reply = open_session(tenant)
        request = f"b'\\x0a\\x20{reply.session_id}'"
        code = (
            f"value = [call(name) for name in {names[:-1]!r}] + [call('CloseSession', {request}), call('DeviceState')]"
        )
        *refused, state = cuda(peer, CALLS + code)
    assert refused == ["PERMISSION_DENIED"] * len(names)
    assert isinstance(state, int) and state > 0
    assert appliance.process.poll() is None
    assert not appliance.client.inventory().draining


def test_connections_that_are_not_used_keep_out_only_their_own(appliance: StandIn, tenant: Tenant) -> None:
    """Asking without end fills the session's own places; another session of the lease does not notice."""
    flood = """
import json, os, socket
way = socket.socket(fileno=os.dup(json.loads(os.environ["REMOTEGPU_SHARES"])[0]["asking"]["fd"]))
way.setblocking(False)
sent = 0
try:
    while sent < 10_000:
        way.send(b"{}")
        sent += 1
except BlockingIOError:
    pass
value = sent
"""
    with session(tenant) as greedy, session(tenant) as modest:
        assert cuda(greedy, flood) < 10_000
        assert cuda(modest, "start(); value = take(1 << 20) > 0")
    assert appliance.process.poll() is None
