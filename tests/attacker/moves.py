"""Attacks on leases that move, at an appliance with TLS and tokens. Alice's lease shall not go where mallory wants it,
and nothing comes that nobody was invited to bring."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc
from attacker import network
from attacker.attack import Control, Outcome
from attacker.network import Network, answer
from support.stand_in import Tenant
from support.system import until

from remotegpu.rpc import WIRE_VERSION, pb, pb_grpc
from remotegpu.rpc.client import ApplianceClient

TICKET = "03" * 32
DRIVER = 13040  # of the stand-in


@contextlib.contextmanager
def world(control: Control | None) -> Iterator[Network]:
    # What moves has to be kept without a connection.
    with network.world(control, "--grace", "60s") as it:
        yield it


class _Destination(pb_grpc.ControlServicer):
    """An appliance of mallory's, which wants what is sent to it and gives nothing."""

    def __init__(self) -> None:
        self.got: list[pb.ReceiveLeaseRequest] = []

    def ReceiveLease(self, request: pb.ReceiveLeaseRequest, context: Any) -> pb.ReceiveLeaseReply:  # noqa: N802
        self.got.append(request)
        context.abort(grpc.StatusCode.UNAVAILABLE, "thank you")
        raise AssertionError("abort does not return")


@contextlib.contextmanager
def _destination() -> Iterator[tuple[str, _Destination]]:
    server, servicer = grpc.server(ThreadPoolExecutor(2)), _Destination()
    pb_grpc.add_ControlServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}", servicer
    finally:
        server.stop(None)


def move_another_lease(world: Network) -> Outcome:
    """To an appliance of mallory's, which is sent the secret of the lease and the tickets of its sessions."""
    with world.lease("alice's") as alice, _destination() as (to, destination), world.client("token-of-mallory") as m:
        session = alice.session()
        request = pb.MoveLeaseRequest(lease_id=alice.granted.lease_id, to=to, invitation=secrets.token_hex(32))
        code = answer(lambda: list(m._stub.MoveLease(request, metadata=m._metadata, timeout=20)))
        sent = str(destination.got)
        return Outcome(alice.granted.lease_secret in sent and session.reply.ticket in sent, code)


def look_around(world: Network) -> Outcome:
    """From the appliance's place in the network, by moves of mallory's own lease: who listens where?"""
    with world.lease("mallory's", "token-of-mallory") as own, _destination() as (to, inside):
        with world.client("token-of-mallory") as mallory:
            request = pb.MoveLeaseRequest(lease_id=own.granted.lease_id, to=to, invitation=secrets.token_hex(32))
            code = answer(lambda: list(mallory._stub.MoveLease(request, metadata=mallory._metadata, timeout=20)))
        return Outcome(inside.got != [], code)


# ---- what comes


def _coming(like: Tenant, invitation: str, *sessions: str) -> pb.ReceiveLeaseRequest:
    """A lease of a new name, on a GPU like that of another one."""
    return pb.ReceiveLeaseRequest(
        invitation=invitation, versions=pb.Versions(wire=WIRE_VERSION), driver_version=DRIVER,
        lease_id=secrets.token_hex(16), lease_secret=secrets.token_hex(32), client="moved",
        devices=like.granted.devices,
        sessions=[pb.MovingSession(session_id=each, ticket=TICKET, pid=1) for each in sessions],
    )  # fmt: skip


def _send(client: ApplianceClient, request: pb.ReceiveLeaseRequest) -> str:
    # A caller that has an invitation needs no token.
    return answer(lambda: client._stub.ReceiveLease(request, timeout=60))


def _invited(client: ApplianceClient) -> str:
    return str(client._stub.InviteLease(pb.InviteLeaseRequest(), metadata=client._metadata, timeout=20).invitation)


def _withdraw(client: ApplianceClient, invitation: str) -> None:
    with contextlib.suppress(grpc.RpcError):
        client._stub.SettleLease(pb.SettleLeaseRequest(invitation=invitation, keep=False), timeout=20)


def forged_invitation(world: Network) -> Outcome:
    """Without a token, too."""
    with world.lease("alice's") as alice, world.client(None) as stranger:
        code = _send(stranger, _coming(alice, secrets.token_hex(32)))
        return Outcome(code == "OK", code)


def invitation_used_twice(world: Network) -> Outcome:
    """A second share for one invitation, which may be limited to one."""
    with world.lease("mallory's", "token-of-mallory") as own, world.client("token-of-mallory") as mallory:
        invitation = _invited(mallory)
        assert _send(mallory, _coming(own, invitation)) == "OK"
        code = _send(mallory, _coming(own, invitation))
        _withdraw(mallory, invitation)
        return Outcome(code == "OK", code)


def name_of_anothers_session(world: Network) -> Outcome:
    """A session of mallory's that has the name of alice's: her connections would be given to it."""
    with world.lease("alice's") as alice, world.client("token-of-mallory") as mallory:
        session, invitation = alice.session(), _invited(mallory)
        code = _send(mallory, _coming(alice, invitation, session.reply.session_id))
        _withdraw(mallory, invitation)
        return Outcome(code == "OK", code)


def one_name_for_two_that_come(world: Network) -> Outcome:
    """Both begin before the name is taken. What the first has, a user id and a worker, would never come back."""
    name, others = secrets.token_hex(16), [secrets.token_hex(16) for _ in range(3)]
    with (
        world.lease("mallory's", "token-of-mallory") as own,
        world.client("token-of-mallory") as mallory,
        ThreadPoolExecutor(1) as pool,
    ):
        invitations = [_invited(mallory), _invited(mallory)]
        slow: Future[str] = pool.submit(_send, mallory, _coming(own, invitations[0], *others, name))
        until(lambda: slow.done() or world.shows("moved"), 20, "its share is taken, and its first worker starts")
        codes = [_send(mallory, _coming(own, invitations[1], name)), slow.result()]
        for invitation in invitations:
            _withdraw(mallory, invitation)
        until(lambda: not world.shows("moved"), 20, "neither stays")
        return Outcome(codes == ["OK", "OK"], f"{codes.count('OK')} of 2")
