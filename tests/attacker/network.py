"""Attacks from the network, on an appliance with TLS and tokens. Alice is the victim, mallory has a token, too.

Workers are stand-ins: an attack is over when its bytes would reach one.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import secrets
import socket
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc
from attacker.attack import Control, How, Outcome, launcher, put_undefended
from cryptography import x509
from support.certificates import certificate
from support.faultproxy import FaultProxy, Way
from support.stand_in import StandIn, Tenant, make_dist
from support.strangers import HALF_HANDSHAKE, HTTP2_PREFACE, Strangers
from support.system import REMOTEGPU, Watch, free_port, until

from remotegpu.api.failures import ApplianceError
from remotegpu.api.quantities import Ask
from remotegpu.rpc import WIRE_VERSION, pb
from remotegpu.rpc.client import Access, ApplianceClient, parse_endpoint

SMALL = Ask(memory_bytes=16 << 20)
TOKENS = "[admin]\nroot:token-of-root\n[user]\nalice:token-of-alice\nmallory:token-of-mallory\n"
WRONG_SECRET = "00" * 32


@dataclass
class Network:
    """The world of these attacks. `folder` has certificates: `here` is the appliance's, `false` mallory's."""

    appliance: StandIn
    folder: Path
    control: Control | None
    page: int  # where the dashboard listens

    @property
    def address(self) -> tuple[str, int]:
        return ("127.0.0.1", parse_endpoint(self.appliance.endpoint).port)

    @property
    def data_address(self) -> tuple[str, int]:
        return ("127.0.0.1", self.appliance.client.hello().data_port)

    @contextlib.contextmanager
    def client(self, token: str | None) -> Iterator[ApplianceClient]:
        access = Access(token, self.appliance.access.ca)
        client = ApplianceClient(parse_endpoint(self.appliance.endpoint), access, call_seconds=20)
        try:
            yield client
        finally:
            client.close()

    @contextlib.contextmanager
    def lease(self, name: str, token: str = "token-of-alice") -> Iterator[Tenant]:
        with self.client(token) as client, client.open_lease(SMALL, name, wait=False) as events:
            granted = next(event.granted for event in events if event.HasField("granted"))
        tenant = Tenant(self.appliance, granted, hold=True)
        try:
            yield tenant
        finally:
            with contextlib.suppress(ApplianceError):
                tenant.close()

    @contextlib.contextmanager
    def asked_page(self, path: str, token: str = "") -> Iterator[http.client.HTTPResponse]:
        """Yields the dashboard's reply to a request; the dashboard speaks TLS, as all ports do."""
        context = ssl.create_default_context(cafile=self.folder / "here.pem")
        asked = http.client.HTTPSConnection("127.0.0.1", self.page, context=context, timeout=20)
        with contextlib.closing(asked):
            asked.request("GET", path, headers={"X-Remotegpu-Token": token} if token else {})
            yield asked.getresponse()

    def shows(self, name: str) -> bool:
        with self.client("token-of-root") as root:
            return any(lease.client == name for lease in root.inventory().leases)


@contextlib.contextmanager
def world(control: Control | None, *more: str) -> Iterator[Network]:
    """`more`: options of the appliance."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for host in ("here", "false"):
            certificate(folder, host, x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        (folder / "tokens").write_text(TOKENS)
        dist = make_dist(folder / "dist")
        if control is not None and control.how is How.BUILD:
            put_undefended(dist, control.name, "remotegpu-gateway")
        options = ["--tokens", str(folder / "tokens"), "--max-leases", "40", *more]
        page = free_port()
        options += ["--sessions-per-lease", "4", "--dashboard", f"127.0.0.1:{page}"]
        access = Access("token-of-alice", folder / "here.pem")
        if control == Control(How.SET_UP, "no-tls"):
            access = Access("token-of-alice")
        else:
            options += ["--cert", str(folder / "here.pem"), "--key", str(folder / "here.key")]
        with StandIn(dist, *options, access=access, prefix=launcher(control)) as it:
            yield Network(it, folder, control, page)


def answer(call: Callable[[], object]) -> str:
    """The status code of a call's answer."""
    try:
        call()
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


def _ends(connection: socket.socket, seconds: float) -> bool:
    """Whether the other side closes the connection in time."""
    watch = Watch()
    while watch.within(seconds):
        connection.settimeout(0.2)
        with contextlib.suppress(TimeoutError):
            try:
                return connection.recv(1) == b""
            except (ConnectionError, ssl.SSLError):
                return True
    return False


# ---- who calls


def no_token(world: Network) -> Outcome:
    canary = secrets.token_hex(8)
    with world.lease(canary), world.client(None) as stranger:
        seen: list[pb.InventoryReply] = []
        code = answer(lambda: seen.append(stranger._stub.Inventory(pb.InventoryRequest(), timeout=20)))
    return Outcome(canary in str(seen), code)


def wrong_token(world: Network) -> Outcome:
    canary = secrets.token_hex(8)
    with world.lease(canary), world.client("token-of-Alice") as stranger:
        seen: list[pb.InventoryReply] = []
        ask = pb.InventoryRequest()
        call = stranger._stub.Inventory
        code = answer(lambda: seen.append(call(ask, metadata=stranger._metadata, timeout=20)))
    return Outcome(canary in str(seen), code)


def leases_of_others(world: Network) -> Outcome:
    canary = secrets.token_hex(8)
    with world.lease(canary), world.client("token-of-mallory") as mallory:
        seen = mallory.inventory()
        assert world.shows(canary), "it is there to be seen"
    return Outcome(canary in str(seen), "OK")


def drain_as_a_user(world: Network) -> Outcome:
    with world.client("token-of-mallory") as mallory:
        request = pb.DrainRequest(deadline_seconds=600)
        code = answer(lambda: mallory._stub.Drain(request, metadata=mallory._metadata, timeout=20))
    try:
        with world.client("token-of-root") as root:
            return Outcome(root.inventory().draining, code)
    except ApplianceError:
        return Outcome(True, code)  # Without leases a drained appliance ends at once.


def page_without_a_token(world: Network) -> Outcome:
    with world.lease("alice's"), world.asked_page("/api/snapshot") as answered:
        return Outcome("alice's" in answered.read().decode(), str(answered.status))


def page_of_another(world: Network) -> Outcome:
    """Mallory has a token of her own."""
    with world.lease("alice's"), world.asked_page("/api/snapshot", "token-of-mallory") as answered:
        return Outcome("alice's" in answered.read().decode(), str(answered.status))


# ---- another tenant's lease, whose id is known


def suspend_of_another(world: Network) -> Outcome:
    with world.lease("alice's") as alice, world.client("token-of-mallory") as mallory:
        request = pb.SuspendLeaseRequest(lease_id=alice.granted.lease_id)
        code = answer(lambda: list(mallory._stub.SuspendLease(request, metadata=mallory._metadata, timeout=20)))
        with world.client("token-of-root") as root:
            (lease,) = [each for each in root.inventory().leases if each.client == "alice's"]
        return Outcome(bool(lease.suspended), code)


def resize_of_another(world: Network) -> Outcome:
    def size() -> int:
        with world.client("token-of-root") as root:
            leases = [each for each in root.inventory().leases if each.client == "alice's"]
        return sum(place.leased_bytes for each in leases for place in each.places)

    with world.lease("alice's") as alice, world.client("token-of-mallory") as mallory:
        before = size()
        request = pb.ResizeLeaseRequest(lease_id=alice.granted.lease_id, memory_bytes=4 << 20)
        code = answer(lambda: mallory._stub.ResizeLease(request, metadata=mallory._metadata, timeout=20))
        return Outcome(size() != before, code)


def look_into_a_lease(world: Network) -> Outcome:
    """NVML's view of a share lists the names of its processes."""
    canary = secrets.token_hex(8)
    with world.lease("alice's") as alice, world.client("token-of-mallory") as mallory:
        asked = pb.OpenSessionRequest(
            versions=pb.Versions(wire=WIRE_VERSION), lease_id=alice.granted.lease_id,
            lease_secret=alice.granted.lease_secret, process_name=canary,
        )  # fmt: skip
        assert not mallory._stub.OpenSession(asked, timeout=20).refusal
        seen: list[pb.DeviceStateReply] = []
        request = pb.DeviceStateRequest(lease_id=alice.granted.lease_id, lease_secret=WRONG_SECRET)
        code = answer(lambda: seen.append(mallory._stub.DeviceState(request, timeout=20)))
    return Outcome(canary in str(seen), code)


def open_a_session_in_a_lease(world: Network) -> Outcome:
    with world.lease("alice's") as alice, world.client("token-of-mallory") as mallory:
        got: list[pb.OpenSessionReply] = []
        request = pb.OpenSessionRequest(
            versions=pb.Versions(wire=WIRE_VERSION), lease_id=alice.granted.lease_id, lease_secret=WRONG_SECRET
        )
        code = answer(lambda: got.append(mallory._stub.OpenSession(request, timeout=20)))
    return Outcome(any(reply.ticket for reply in got), code)


def close_a_session(world: Network) -> Outcome:
    with world.lease("alice's") as alice, world.client("token-of-mallory") as mallory:
        session = alice.session()
        request = pb.CloseSessionRequest(session_id=session.reply.session_id, lease_secret=WRONG_SECRET)
        code = answer(lambda: mallory._stub.CloseSession(request, timeout=20))
        return Outcome(code == "OK" and '"op": "end"' in session.rest(), code)


def end_a_lease(world: Network) -> Outcome:
    canary = secrets.token_hex(8)
    with world.lease(canary) as alice, world.client("token-of-mallory") as mallory:
        request = pb.CloseLeaseRequest(lease_id=alice.granted.lease_id, lease_secret=WRONG_SECRET)
        code = answer(lambda: mallory._stub.CloseLease(request, timeout=20))
        return Outcome(not world.shows(canary), code)


def _admitted(tenant: Tenant, kind: bytes, some_id: str, ticket: str) -> bool:
    try:
        tenant.connect(kind, some_id, ticket)
    except ConnectionRefusedError:
        return False
    return True


def _closed_unless(won: bool) -> Outcome:
    return Outcome(won, "admitted" if won else "closed")


def replay_a_ticket(world: Network) -> Outcome:
    with world.lease("alice's") as alice:
        reply = alice.open_session()
        assert _admitted(alice, b"RGP1", reply.session_id, reply.ticket)
        return _closed_unless(_admitted(alice, b"RGP1", reply.session_id, reply.ticket))


def take_a_session_over(world: Network) -> Outcome:
    """Uses the session's ticket before alice has connected."""
    with world.lease("alice's") as alice, world.lease("mallory's", "token-of-mallory") as mallory:
        session, own = alice.open_session(), mallory.open_session()
        return _closed_unless(_admitted(mallory, b"RGP1", session.session_id, own.ticket))


def hold_a_lease(world: Network) -> Outcome:
    """Keeps alice's share taken after alice has gone."""
    with world.lease("alice's") as alice:
        return _closed_unless(_admitted(alice, b"RGL1", alice.granted.lease_id, WRONG_SECRET))


# ---- TLS


def older_tls(world: Network) -> Outcome:
    context = ssl.create_default_context(cafile=str(world.folder / "here.pem"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    try:
        with (
            socket.create_connection(world.address, 5) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
        ):
            return Outcome(True, str(secured.version()))
    except (ssl.SSLError, ConnectionError):
        return Outcome(False, "handshake")


def plaintext_at_the_tls_port(world: Network) -> Outcome:
    """A ticket in the clear, which an eavesdropper could use; and the answer."""
    with world.lease("alice's") as alice:
        reply = alice.open_session()
        with socket.create_connection(world.data_address, 20) as plain, contextlib.suppress(ConnectionError):
            plain.sendall(b"RGP1" + bytes.fromhex(reply.session_id) + bytes.fromhex(reply.ticket))
            return _closed_unless(plain.recv(1) == b"K")
        return _closed_unless(False)


def flipped_bits(world: Network) -> Outcome:
    """One bit of each of 20 answers of alice's worker is turned on the way. Her canary is the number in them."""
    host, port = world.data_address
    with world.lease("alice's") as alice, FaultProxy(host, port) as between:
        changed = refused = 0
        for at in range(20):
            reply = alice.open_session()
            context = world.appliance.access.tls_context()
            plain = socket.create_connection((host, between.port), 20)
            connection = plain if context is None else context.wrap_socket(plain, server_hostname=host)
            with connection:
                connection.sendall(b"RGP1" + bytes.fromhex(reply.session_id) + bytes.fromhex(reply.ticket))
                assert connection.recv(1) == b"K"
                connection.sendall(b"memory 0\n")
                right = connection.recv(4096)
                # Behind the head of a TLS record: a changed length would only make alice wait.
                between.damage(Way.BACK, 5 + at * (len(right) - 6) // 20)
                connection.sendall(b"memory 0\n")
                try:
                    changed += connection.recv(4096) not in (right.replace(b'"id": 2', b'"id": 3'), b"")
                except (ssl.SSLError, ConnectionError):
                    refused += 1
            stub = world.appliance.client._stub
            stub.CloseSession(
                pb.CloseSessionRequest(session_id=reply.session_id, lease_secret=alice.granted.lease_secret)
            )
    return Outcome(changed > 0, f"{refused} of 20 connections ended")


def false_appliance(world: Network) -> Outcome:
    """It has a certificate of its own and waits for alice's token. Trusting that certificate is the control."""
    trusted = "here.pem" if world.control is None else "false.pem"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(world.folder / "false.pem", world.folder / "false.key")
    context.set_alpn_protocols(["h2"])
    heard = bytearray()

    def listen(server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = server.accept()
                with contextlib.suppress(OSError), plain, context.wrap_socket(plain, server_side=True) as secured:
                    # An HTTP/2 server's empty settings, then whatever the caller says.
                    secured.sendall(HTTP2_PREFACE[-9:])
                    secured.settimeout(2)
                    while b"token-of-alice" not in heard and (data := secured.recv(4096)):
                        heard.extend(data)

    (world.folder / "token").write_text("token-of-alice\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=listen, args=(server,), daemon=True).start()
        at = f"127.0.0.1:{server.getsockname()[1]}"
        command = [REMOTEGPU, "ls", "--appliance", at, "--ca", str(world.folder / trusted)]
        done = subprocess.run(
            [*command, "--token-file", str(world.folder / "token")], capture_output=True, text=True, timeout=60
        )
    return Outcome(b"token-of-alice" in heard, "certificate" if "certificate" in done.stderr else "other")


# ---- too much, too slow


def large_message(world: Network) -> Outcome:
    request = pb.HelloRequest(versions=pb.Versions(wire=WIRE_VERSION), lease_id="x" * (8 << 20))
    code = answer(lambda: world.appliance.client._stub.Hello(request, timeout=20))
    return Outcome(code != "RESOURCE_EXHAUSTED", code)


def slow_handshake(world: Network) -> Outcome:
    with socket.create_connection(world.data_address, 20) as slow:
        slow.sendall(HALF_HANDSHAKE)
        ended = _ends(slow, 8)
    return Outcome(not ended, "closed" if ended else "waits")


def all_places(world: Network) -> Outcome:
    """One address fills all places at the data port. Each leaves after 5 s; do the first leave earlier for others?"""
    # The log has ten refusals in five seconds, which the attack before may have used up.
    for _ in range(3):
        with Strangers([world.data_address[1]], addresses=1) as strangers:
            strangers.come(100, HALF_HANDSHAKE)
            assert _ends(strangers.first_of_each_port()[0], 20)
        until(lambda: "the gateway refused" in world.appliance.log, 20, "it is in the log")
        if "left its place to another" in world.appliance.log:
            return Outcome(False, "closed")
    return Outcome(True, "waited")


def leases_without_end(world: Network) -> Outcome:
    """Requests that wait, until alice may not even ask any more. The limit is 40; 80 are tried."""
    asks = pb.OpenLeaseRequest(versions=pb.Versions(wire=WIRE_VERSION), count=1, milli=1000, client="m", wait=True)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(world.client("token-of-mallory")) for _ in range(2)]
        code, count = "OK", 0
        while code == "OK" and count < 80:
            mallory = clients[count % 2]
            call = mallory._stub.OpenLease(asks, metadata=mallory._metadata)
            stack.callback(call.cancel)
            code = answer(call.__next__)
            count += 1
    until(lambda: world.appliance.leased == 0, 20, "all have gone, and who got the GPU did not hold it")
    return Outcome(code == "OK", code)


def sessions_without_end(world: Network) -> Outcome:
    """Each session is a process. The limit is 4 for each lease; 6 are tried at once."""
    with world.lease("mallory's", "token-of-mallory") as mallory, ThreadPoolExecutor(6) as pool:
        refused = sum(bool(reply.refusal) for reply in pool.map(mallory.open_session, range(6)))
    return Outcome(refused == 0, "refused" if refused == 2 else "OK")


# ---- names


def path_in_names(world: Network) -> Outcome:
    """Paths as an environment's name and a lease's id, in case one becomes a file name. The canary: the token file."""
    path = f"../../../../..{world.folder / 'tokens'}"
    with world.lease("alice's") as alice, world.client("token-of-mallory") as mallory:
        wish = pb.OpenSessionRequest(
            versions=pb.Versions(wire=WIRE_VERSION), lease_id=alice.granted.lease_id,
            lease_secret=alice.granted.lease_secret, offload=pb.Offload(environment=path),
        )  # fmt: skip
        reply = mallory._stub.OpenSession(wish, timeout=20)
        request = pb.DeviceStateRequest(lease_id=path, lease_secret=path)
        code = answer(lambda: mallory._stub.DeviceState(request, timeout=20))
    return Outcome(not reply.refusal or "token-of" in reply.refusal, code)


def lines_in_the_log(world: Network) -> Outcome:
    """A name with a line break and what looks like a line of the audit."""
    forged = f"audit: {secrets.token_hex(8)}"
    with world.lease(f"x\n2026-01-01 00:00:00,000 WARNING {forged}"):
        pass
    log = until(lambda: forged in world.appliance.log and world.appliance.log, 20, "the lease is in the log")
    begins = any(line.startswith("2026-01-01 00:00:00,000") for line in log.splitlines())
    return Outcome(begins, "OK")
