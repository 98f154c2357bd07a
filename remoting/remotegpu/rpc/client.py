"""A client of an appliance's control service. Its methods raise ApplianceError, never an exception of gRPC."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc

from remotegpu.api import addresses
from remotegpu.api.failures import ApplianceError, Failure
from remotegpu.api.names import CA_ENV, TOKEN_ENV
from remotegpu.api.quantities import Ask
from remotegpu.rpc import OLDEST_WIRE, WIRE_VERSION, own_token, pb, pb_grpc

DEFAULT_PORT: Final = 7070

# Together these are less than five seconds, the longest time that a user should wait for an error.
_CALL_SECONDS: Final = 2.0
_DIAGNOSE_SECONDS: Final = 1.0
# CloseLease waits for the end of workers, which takes up to two seconds.
_CLOSE_SECONDS: Final = 4.0
# A stream without a message for this time is broken: an appliance reports every second why a request waits.
_SILENCE_SECONDS: Final = 15.0
# The kernel probes a quiet peer after 3 s, every second, five times. The gateway has the same settings.
_KEEPALIVE: Final = (
    ((socket.SOL_SOCKET, socket.SO_KEEPALIVE), 1),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPIDLE), 3),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPINTVL), 1),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPCNT), 5),
)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Endpoint:
    host: str
    port: int

    def __str__(self) -> str:
        return addresses.joined(self.host, self.port)


def parse_endpoint(text: str) -> Endpoint:
    """Parses HOST, HOST:PORT or [V6]:PORT. Raises ApplianceError."""
    try:
        host, port = addresses.split(text, DEFAULT_PORT)
    except ValueError:
        port = 0
    if not port:
        raise ApplianceError(Failure.INVALID, f"{text!r} is not the address of an appliance; write HOST:PORT")
    return Endpoint(host, port)


@dataclass(frozen=True, slots=True)
class Access:
    """The credentials for an appliance: the token, and for TLS the CA and the name in the certificate."""

    token: str | None = None  # None: the file of this user's own appliance; empty: no token
    ca: Path | None = None
    server_name: str | None = None

    def tls_context(self) -> ssl.SSLContext | None:
        if self.ca is None:
            return None
        try:
            context = ssl.create_default_context(cafile=str(self.ca))
        except (OSError, ssl.SSLError) as error:
            reason = error.strerror or str(error)
            raise ApplianceError(
                Failure.INVALID, f"the CA certificate {self.ca} cannot be used: {reason}; correct --ca or {CA_ENV}"
            ) from None
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return context


def hello_with_versions(endpoint: str, *, wire: int, table_hash: int) -> pb.HelloReply:
    """Returns an appliance's reply to a client with these versions, for tests of compatibility."""
    client = ApplianceClient(parse_endpoint(endpoint), Access())
    try:
        return client.answer_to(pb.Versions(wire=wire, table_hash=table_hash, program="a test of versions"))
    finally:
        client.close()


class ApplianceClient:
    """A client of one appliance. A call fails after `call_seconds`. `close` does not end the leases of the client."""

    def __init__(self, endpoint: Endpoint, access: Access, call_seconds: float = _CALL_SECONDS) -> None:
        own = own_token.find(endpoint.host, endpoint.port) if access.token is None else None
        here, token = own or (endpoint.host, access.token)
        # With TLS the given name stays, since the certificate must match it.
        self.endpoint = endpoint if access.ca is not None else Endpoint(here, endpoint.port)
        self.access = access
        self._call_seconds = call_seconds
        access.tls_context()
        self._channel = _channel(self.endpoint, access)
        self._stub = pb_grpc.ControlStub(self._channel)
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self.versions = pb.Versions(wire=WIRE_VERSION, oldest=OLDEST_WIRE, program="remotegpu CLI")

    def close(self) -> None:
        self._channel.close()

    def hello(self) -> pb.HelloReply:
        reply = self.answer_to(self.versions)
        if reply.refusal:
            raise ApplianceError(Failure.MISMATCH, f"{self.endpoint}: {reply.refusal}")
        return reply

    def answer_to(self, versions: pb.Versions) -> pb.HelloReply:
        """Returns the appliance's reply to a client with these versions. A refusal is in the reply."""
        reply: pb.HelloReply = self._ask(self._stub.Hello, pb.HelloRequest(versions=versions))
        return reply

    def inventory(self) -> pb.InventoryReply:
        reply: pb.InventoryReply = self._ask(self._stub.Inventory, pb.InventoryRequest())
        return reply

    def health(self) -> pb.HealthReply:
        reply: pb.HealthReply = self._ask(self._stub.Health, pb.HealthRequest())
        return reply

    def drain(self, seconds: float) -> None:
        """Drains the appliance: it opens no new lease, ends leases after `seconds`, and exits when all have ended."""
        self._ask(self._stub.Drain, pb.DrainRequest(deadline_seconds=seconds))

    def open_lease(self, ask: Ask, client: str, *, wait: bool) -> AbstractContextManager[Iterator[pb.OpenLeaseReply]]:
        """Yields a stream of reasons for waiting, and at last the lease. Fails if no message comes for 15 s."""
        fraction = {} if ask.memory_bytes else {"milli": ask.milli_per_gpu}
        request = pb.OpenLeaseRequest(
            versions=self.versions,
            count=ask.count,
            memory_bytes=ask.memory_bytes,
            client=client,
            wait=wait,
            compute_milli=ask.compute.milli,
            compute_limit_milli=ask.compute.limit_milli,
            **fraction,
        )
        return self._streaming(self._stub.OpenLease, request)

    def close_lease(self, lease_id: str, secret: str) -> None:
        request = pb.CloseLeaseRequest(lease_id=lease_id, lease_secret=secret)
        self._call(lambda: self._stub.CloseLease(request, timeout=_CLOSE_SECONDS))

    def suspend_lease(self, lease_id: str) -> AbstractContextManager[Iterator[pb.Progress]]:
        """Suspends a lease. Yields a stream of its progress, and at last the result. Continues if the caller leaves."""
        return self._streaming(self._stub.SuspendLease, pb.SuspendLeaseRequest(lease_id=lease_id))

    def resume_lease(self, lease_id: str) -> AbstractContextManager[Iterator[pb.Progress]]:
        """Resumes a lease. Yields the same stream as `suspend_lease`."""
        return self._streaming(self._stub.ResumeLease, pb.ResumeLeaseRequest(lease_id=lease_id))

    def resize_lease(self, lease_id: str, ask: Ask) -> pb.ResizeLeaseReply:
        """Changes the size of a lease's share on each of its GPUs."""
        milli = 0 if ask.memory_bytes else ask.milli_per_gpu
        request = pb.ResizeLeaseRequest(lease_id=lease_id, milli=milli, memory_bytes=ask.memory_bytes)
        reply: pb.ResizeLeaseReply = self._ask(self._stub.ResizeLease, request)
        return reply

    def invite_lease(self, lease_id: str = "") -> str:
        """Returns an invitation for a lease to move to this appliance. `lease_id` is only for Kubernetes."""
        reply: pb.InviteLeaseReply = self._ask(self._stub.InviteLease, pb.InviteLeaseRequest(lease_id=lease_id))
        return reply.invitation

    def receive_lease(self, request: pb.ReceiveLeaseRequest) -> pb.ReceiveLeaseReply:
        """Prepares a move, for the appliance that has the lease. Returns data port and tickets for its sessions."""
        request.versions.CopyFrom(self.versions)
        reply: pb.ReceiveLeaseReply = self._ask(self._stub.ReceiveLease, request)
        return reply

    def settle_lease(self, invitation: str, *, keep: bool) -> None:
        """Ends a move: with `keep` the lease is at this appliance from now on, else it stays at the other one."""
        self._ask(self._stub.SettleLease, pb.SettleLeaseRequest(invitation=invitation, keep=keep))

    def move_lease(
        self, lease_id: str, to: "ApplianceClient", invitation: str
    ) -> AbstractContextManager[Iterator[pb.Progress]]:
        """Moves a lease to the appliance `to`, which gave the invitation. Yields the same stream as `suspend_lease`."""
        ca = b"" if to.access.ca is None else to.access.ca.read_bytes()
        request = pb.MoveLeaseRequest(
            lease_id=lease_id,
            to=str(to.endpoint),
            invitation=invitation,
            ca=ca,
            server_name=to.access.server_name or "",
        )
        return self._streaming(self._stub.MoveLease, request)

    def connect_data(self, port: int, *, tls: bool) -> socket.socket:
        """Opens a connection to the data port. Raises ApplianceError."""
        context = self.access.tls_context() if tls else None
        try:
            plain = socket.create_connection((self.endpoint.host, port), self._call_seconds)
            for option, value in _KEEPALIVE:
                plain.setsockopt(*option, value)
            name = self.access.server_name or self.endpoint.host
            return plain if context is None else context.wrap_socket(plain, server_hostname=name)
        except OSError as error:
            where = Endpoint(self.endpoint.host, port)
            raise ApplianceError(
                Failure.UNAVAILABLE,
                f"the data port {where} of the appliance does not answer ({_reason(error)}): "
                "is a firewall between? It must let control and data port through",
            ) from None

    def _ask(self, method: Callable[..., Any], request: Any) -> Any:
        return self._call(lambda: method(request, metadata=self._metadata, timeout=self._call_seconds))

    @contextlib.contextmanager
    def _streaming(self, method: Callable[..., Any], request: Any) -> Iterator[Iterator[Any]]:
        """Yields the iterator of a call's replies. The end of the block cancels the call."""
        stream = method(request, metadata=self._metadata)
        try:
            yield self._events(stream)
        finally:
            stream.cancel()

    def _events(self, stream: Any) -> Iterator[Any]:
        while True:
            silence = threading.Timer(_SILENCE_SECONDS, stream.cancel)
            silence.daemon = True
            silence.start()
            try:
                reply = self._call(lambda: next(stream, None))
            finally:
                silence.cancel()
            if reply is None:
                return
            yield reply

    def _call(self, call: Callable[[], _T]) -> _T:
        try:
            return call()
        except grpc.RpcError as error:
            raise self._explain(error) from None

    def _explain(self, error: grpc.RpcError) -> ApplianceError:
        code, details = error.code(), " ".join((error.details() or "").split())
        match code:
            case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.PERMISSION_DENIED:
                # Another token may help only for UNAUTHENTICATED (16).
                hint = f"; give the right one with --token-file or {TOKEN_ENV}" if code.value[0] == 16 else ""
                return ApplianceError(Failure.DENIED, f"{self.endpoint}: {details}{hint}")
            case grpc.StatusCode.RESOURCE_EXHAUSTED:
                return ApplianceError(Failure.BUSY, f"{self.endpoint}: {details}; try later, or leave out --no-wait")
            case grpc.StatusCode.FAILED_PRECONDITION:
                return ApplianceError(Failure.BUSY, f"{self.endpoint}: {details}")
            case grpc.StatusCode.INVALID_ARGUMENT:
                return ApplianceError(Failure.INVALID, f"{self.endpoint}: {details}")
            case grpc.StatusCode.UNIMPLEMENTED:
                message = f"{self.endpoint} is not the control port of an appliance; its data port is one higher"
                return ApplianceError(Failure.UNAVAILABLE, message)
            case _:
                found = diagnose(self.endpoint, self.access, slow=code is grpc.StatusCode.DEADLINE_EXCEEDED)
                return ApplianceError(Failure.UNAVAILABLE, found)


def diagnose(endpoint: Endpoint, access: Access, *, slow: bool) -> str:
    """Returns the reason why gRPC got no answer, from a test connection. `slow` says that the call timed out."""
    correct = (
        f"is the appliance running? Start one with `remotegpu appliance --listen {endpoint}`, or correct --appliance"
    )
    try:
        plain = socket.create_connection((endpoint.host, endpoint.port), _DIAGNOSE_SECONDS)
    except OSError as error:
        return f"no appliance at {endpoint} ({_reason(error)}): {correct}"
    with plain:
        plain.settimeout(_DIAGNOSE_SECONDS)
        context = access.tls_context() or _unverified()
        context.set_alpn_protocols(["h2"])
        try:
            with context.wrap_socket(plain, server_hostname=access.server_name or endpoint.host):
                speaks_tls = True
        except ssl.SSLCertVerificationError as error:
            return (
                f"the certificate of {endpoint} is not accepted ({error.verify_message}): "
                f"give the right authority with --ca or {CA_ENV}, and the name it bears with --server-name"
            )
        except OSError:
            speaks_tls = False
    if speaks_tls and access.ca is None:
        return f"the appliance at {endpoint} wants TLS: give its certificate authority with --ca or {CA_ENV}"
    if not speaks_tls and access.ca is not None:
        return f"what listens on {endpoint} does not speak TLS: leave out --ca, or correct --appliance"
    if slow:
        return (
            f"{endpoint} takes connections but has not answered in time: "
            "if an appliance listens there, it is overloaded: try again; else correct the port in --appliance"
        )
    return f"what listens on {endpoint} does not answer as an appliance does: correct the port in --appliance"


def _channel(endpoint: Endpoint, access: Access) -> grpc.Channel:
    # Connections are direct: a web proxy in the environment is for other traffic.
    options: list[tuple[str, str | int]] = [("grpc.enable_http_proxy", 0)]
    if access.ca is None:
        return grpc.insecure_channel(str(endpoint), options)
    if access.server_name:
        options.append(("grpc.ssl_target_name_override", access.server_name))
    return grpc.secure_channel(str(endpoint), grpc.ssl_channel_credentials(access.ca.read_bytes()), options)


def _unverified() -> ssl.SSLContext:
    """Returns a TLS context that verifies nothing, only to test whether the peer speaks TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (error.strerror or str(error)).lower()
