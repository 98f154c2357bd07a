"""An appliance that serves offload sessions: the real gateway and zygotes, no CUDA worker; and sessions through it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.stand_in import StandIn, Tenant, make_dist
from support.system import until

from remotegpu.api.quantities import Ask
from remotegpu.rpc import WIRE_VERSION, pb
from remotegpu.rpc.client import Access
from remotegpu_offload.acceptor import versions
from remotegpu_offload.wire.frames import Service
from remotegpu_offload.wire.peer import Peer

PATIENCE = 60.0
AS_STRANGER = Path(__file__).with_name("as_stranger.py")


@contextlib.contextmanager
def offload_appliance(
    folder: Path,
    *options: str,
    environments: tuple[str, ...] = (),
    uids: bool = True,
    access: Access = Access(),
    stranger: int | None = None,
    env: dict[str, str] | None = None,
    prefix: tuple[str, ...] = (),
) -> Iterator[StandIn]:
    """An appliance with one software GPU of 1 GiB.

    Args:
        folder: an empty one, as `tmp_path`.
        options: more of `remotegpu appliance`.
        environments: values of --offload; default: this test's own interpreter under the name "here".
        uids: as root, each session gets a user id of its own.
        stranger: as root, run the appliance as this user, who must be able to read `folder`; other users can then read
            this Python, wherever it lies.
        env: more variables of the appliance.
        prefix: a command that starts the appliance's, which follows it.
    """
    given = environments or (f"here={sys.executable}:cpu",)
    offered = [word for value in given for word in ("--offload", value)]
    # The last one counts; StandIn says 0.
    base = ["--uid-base", str(_free_uids())] if uids and not stranger and os.geteuid() == 0 else []
    dist = make_dist(folder / "dist")
    if stranger is not None and "--tokens" not in options:
        # Its own token would be for that user alone.
        base.append("--anybody")
    first = () if stranger is None else (sys.executable, str(AS_STRANGER), str(stranger))
    with StandIn(dist, *offered, *base, *options, env=env, access=access, prefix=(*first, *prefix)) as it:
        yield it


def _free_uids() -> int:
    """Far from those that appliances choose, and different for each test process that runs at a time."""
    return 100_000 + os.getpid() % 4096 * 256


def open_session(tenant: Tenant, process_name: str = "test", **wish: Any) -> pb.OpenSessionReply:
    """Ask for an offload session, as the program remotegpu-connect does; the reply as it is, refused or not."""
    found = {**versions.installed(), **wish.pop("versions", {})}
    python = found.pop("python")
    reply: pb.OpenSessionReply = tenant.appliance.client._stub.OpenSession(
        pb.OpenSessionRequest(
            versions=pb.Versions(wire=WIRE_VERSION, program="test"),
            lease_id=tenant.granted.lease_id,
            lease_secret=tenant.granted.lease_secret,
            pid=os.getpid(),
            process_name=process_name,
            offload=pb.Offload(**{"python": python, "packages": found, **wish}),
        ),
        timeout=PATIENCE,
    )
    return reply


@contextlib.contextmanager
def session(tenant: Tenant, *, greet: bool = True, **wish: Any) -> Iterator[Peer]:
    """The client's end of an acceptor on the appliance, greeted."""
    reply = open_session(tenant, **wish)
    assert not reply.refusal, reply.refusal
    connection = tenant.connect(b"RGP1", reply.session_id, reply.ticket)
    connection.settimeout(None)
    peer = Peer(connection, name=f"acceptor {reply.environment.name} at {tenant.appliance.endpoint}")
    peer.start()
    try:
        if greet:
            peer.request(Service.SESSION, {"op": "hello", "versions": versions.installed()}, timeout=PATIENCE)
        yield peer
    finally:
        peer.close()


@contextlib.contextmanager
def lease(appliance: StandIn, ask: Ask = Ask()) -> Iterator[Tenant]:
    """A lease that ends with the block: its share is free then."""
    before = appliance.leased
    tenant = appliance.lease(ask)
    try:
        yield tenant
    finally:
        if tenant.holding is not None:
            tenant.holding.close()
        if appliance.process.poll() is None:
            until(lambda: appliance.leased <= before, PATIENCE, "the share is free")
