"""`python undefended_appliance.py PATCH remotegpu appliance ...`: an appliance that lacks one defence in Python.

For positive controls of tests/attacker. The product has no such option: what is missing is patched out here.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any

from remotegpu.appliance import gateway, packets, server, service
from remotegpu.appliance._generated import gateway_events
from remotegpu.appliance.leases import leases
from remotegpu.appliance.leases.authority import SecretAuthority
from remotegpu.appliance.leases.tokens import Holder, Role, TokenFile
from remotegpu.appliance.machine import cgroups, images, staging
from remotegpu.appliance.moving import arrivals, destinations
from remotegpu.appliance.sessions import code_cache, exports, returns, sessions, workers
from remotegpu.appliance.sessions.state import Lease
from remotegpu.appliance.shares import grants
from remotegpu.cli.app import main
from remotegpu.rpc import own_token


def any_caller() -> None:
    """Treats a caller without a token as an administrator."""
    holder = SecretAuthority._holder

    def somebody(self: Any, caller: Any) -> Holder:
        return holder(self, caller) if caller.token else Holder("nobody", Role.ADMIN)

    SecretAuthority._holder = somebody  # type: ignore[method-assign]


def any_token() -> None:
    """Treats a token that is in no file as an administrator's."""
    holder = TokenFile.holder
    TokenFile.holder = lambda self, token: holder(self, token) or Holder("x", Role.ADMIN)  # type: ignore[method-assign]


def no_roles() -> None:
    """Every user is an administrator."""
    holder = TokenFile.holder

    def administrator(self: TokenFile, token: str) -> Holder | None:
        found = holder(self, token)
        return found and Holder(found.name, Role.ADMIN)

    TokenFile.holder = administrator  # type: ignore[method-assign]


def any_secret() -> None:
    """Accepts the id of a lease without its secret."""

    def find(self: leases.Leases, lease_id: str, secret: str) -> Lease:
        del secret
        return self._live[lease_id]

    leases.Leases.find = find  # type: ignore[method-assign]


def tickets_for_ever() -> None:
    """Admits a ticket again after it was used."""
    admit, connected = gateway.Gateway.admit_session, sessions.Sessions.connected
    admitted: dict[str, tuple[gateway.Gateway, str, Any]] = {}

    def remember(self: gateway.Gateway, session_id: str, ticket: str, data: Any, *, resumes: bool) -> None:
        admitted[session_id] = (self, ticket, data.dup())
        admit(self, session_id, ticket, data, resumes=resumes)

    def again(self: sessions.Sessions, session_id: str) -> None:
        connected(self, session_id)
        to, ticket, data = admitted[session_id]
        admit(to, session_id, ticket, data.dup(), resumes=False)

    gateway.Gateway.admit_session = remember  # type: ignore[method-assign]
    sessions.Sessions.connected = again  # type: ignore[method-assign]


def large_messages() -> None:
    server._CALL_LIMITS[:] = [("grpc.max_receive_message_length", 64 << 20)]


def names_as_they_come() -> None:
    service.one_line = sessions.one_line = lambda value, most: str(value)  # type: ignore[attr-defined]


def leases_without_end() -> None:
    made = leases.Leases.__init__

    def without_limit(self: leases.Leases, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        self._limits = replace(self._limits, leases=1 << 30)

    leases.Leases.__init__ = without_limit  # type: ignore[method-assign]


def sessions_without_end() -> None:
    sessions.Sessions._check_limits = lambda self, lease: None  # type: ignore[method-assign]


def any_grant() -> None:
    """Grants a session what it asks for, whatever the share."""

    def grant(self: grants.Quota, session: str, least: int, want: int) -> int:
        del want
        self.granted[session] = self.granted.get(session, 0) + least
        return least

    grants.Quota.grant = grant  # type: ignore[method-assign]


def one_list_of_exports() -> None:
    """Lets every lease import what any lease exports."""
    everything: dict[str, exports.Export] = {}
    made = exports.Exports.__init__

    def together(self: exports.Exports, quotas: Any) -> None:
        made(self, quotas)
        self._live = everything

    exports.Exports.__init__ = together  # type: ignore[method-assign]


def workers_outlive_their_lease() -> None:
    """Workers are neither told nor killed, and keep the socket by which they know that the appliance lives."""

    told: set[int] = set()
    wait = workers.Worker.wait

    async def nothing(self: workers.Worker, *_: Any) -> None:
        told.add(id(self))

    async def ended(self: workers.Worker) -> int:
        return 0 if id(self) in told else await wait(self)

    workers.Worker.end = workers.Worker.kill = nothing  # type: ignore[method-assign,assignment]
    workers.Worker.wait = ended  # type: ignore[method-assign]
    workers.Worker.close = lambda self: None  # type: ignore[method-assign]


def own_variables_for_acceptors() -> None:
    """Gives a zygote the appliance's variables."""
    from remotegpu_offload.appliance import environments

    environments._PROCESSOR = tuple(os.environ)  # type: ignore[assignment,misc]


def memory_without_end() -> None:
    """Multiplies the memory limit of an acceptor's cgroup by 1,024; its limit of processes stays."""
    create = cgroups.Cgroups.create

    def unlimited(self: cgroups.Cgroups, name: str, memory_bytes: int, processes: int) -> cgroups.Group:
        return create(self, name, memory_bytes << 10, processes)

    cgroups.Cgroups.create = unlimited  # type: ignore[method-assign]


# ---- moves


def any_invitation() -> None:
    """Accepts any invitation, also one that was never made."""

    async def invited(self: arrivals.Arrivals, invitation: str) -> arrivals.Arrival:
        return self._invited.setdefault(invitation, arrivals.Arrival("", ""))

    arrivals.Arrivals.invited = invited  # type: ignore[method-assign]


def invitations_for_ever() -> None:
    """Accepts a used invitation for another lease."""
    receive = arrivals.Arrivals.receive

    async def again(self: arrivals.Arrivals, arrival: arrivals.Arrival, request: Any) -> list[str]:
        arrival.lease, arrival.sessions, arrival.used, arrival.watch = None, [], False, None
        return await receive(self, arrival, request)

    arrivals.Arrivals.receive = again  # type: ignore[method-assign]


def names_twice() -> None:
    """Lets a session take a name that another session took after the request."""
    made = sessions.Sessions.__init__

    class Forgetful(dict[str, Any]):
        def __contains__(self, _: object) -> bool:
            return False

    def forgetful(self: sessions.Sessions, **named: Any) -> None:
        made(self, **named)
        self._live = Forgetful()

    sessions.Sessions.__init__ = forgetful  # type: ignore[method-assign]


def any_name() -> None:
    """Lets an arriving session take the name of one that is there."""
    names_twice()
    sessions.Sessions.find = lambda self, name, *, ended=False: None  # type: ignore[method-assign,assignment]


def any_destination() -> None:
    """Lets users move their leases to any address."""
    destinations.Destinations.check = lambda self, to, owner: None  # type: ignore[method-assign]


# ---- messages of a compromised worker


def descriptors_stay_open() -> None:
    """Ignores a descriptor that is not a regular file: does not close it, and lets the conversation continue."""

    def files(fds: Any) -> list[FileIO]:
        made = []
        for fd in fds:
            with contextlib.suppress(OSError):
                made.append(FileIO(fd))
        return made

    packets._files = files


def events_of_workers() -> None:
    """Believes a worker's messages as if they came from the gateway."""
    made, receive = leases.Leases.__init__, sessions.Sessions._receive
    all_leases: list[leases.Leases] = []

    def remember(self: leases.Leases, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        all_leases.append(self)

    def hear(self: sessions.Sessions, session: Any, packet: Any, file: Any) -> None:
        match gateway_events.read(packet):
            case gateway_events.Used(times):
                for used in times:
                    all_leases[0].used(used)
        receive(self, session, packet, file)

    leases.Leases.__init__ = remember  # type: ignore[method-assign]
    sessions.Sessions._receive = hear  # type: ignore[method-assign]


def heirs_of_any_lease() -> None:
    """Hands memory that sessions of other leases return to a waiting session, before that of its own lease."""
    made = sessions.Sessions.__init__
    everybody: list[sessions.Sessions] = []

    def remember(self: sessions.Sessions, **named: Any) -> None:
        made(self, **named)
        everybody.append(self)

    def others(session: Any, which: Callable[[Any], bool]) -> list[Any]:
        found = [other for other in everybody[0].all() if other is not session and which(other)]
        return sorted(found, key=lambda other: bool(other.lease is session.lease))

    sessions.Sessions.__init__ = remember  # type: ignore[method-assign]
    returns._others = others


def images_that_grow() -> None:
    """Does not seal the file for a suspended session."""

    def filled(place: Any, size: int) -> FileIO:
        file: FileIO = place.open()
        os.posix_fallocate(file.fileno(), 0, size)
        return file

    images._filled = filled


def one_code_cache() -> None:
    """Lets every tenant find the code that any tenant has sent."""

    def find(self: code_cache.CodeCache, tenant: str, name: str) -> FileIO | None:
        del tenant
        return next((image.file for (_, its), image in self._images.items() if its == name), None)

    code_cache.CodeCache.find = find  # type: ignore[method-assign]


# ---- other users of the machine


def token_for_all() -> None:
    """Gives the file of the appliance's own token the default mode of files."""
    keep = own_token.OwnToken.keep

    def readable(self: own_token.OwnToken, host: str, port: int) -> Path:
        path = keep(self, host, port)
        path.chmod(0o644)
        path.parent.chmod(0o755)
        return path

    own_token.OwnToken.keep = readable  # type: ignore[method-assign]


def sockets_for_all() -> None:
    os.umask(0)
    staging.Staging.private = staging.Staging.folder  # type: ignore[method-assign]


PATCHES: dict[str, Callable[[], None]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        any_caller,
        any_token,
        no_roles,
        any_secret,
        tickets_for_ever,
        large_messages,
        names_as_they_come,
        leases_without_end,
        sessions_without_end,
        any_grant,
        one_list_of_exports,
        workers_outlive_their_lease,
        own_variables_for_acceptors,
        memory_without_end,
        any_invitation,
        invitations_for_ever,
        names_twice,
        any_name,
        any_destination,
        descriptors_stay_open,
        events_of_workers,
        heirs_of_any_lease,
        images_that_grow,
        one_code_cache,
        token_for_all,
        sockets_for_all,
    )
}

if __name__ == "__main__":
    PATCHES[sys.argv[1]]()
    sys.argv = ["remotegpu", *sys.argv[3:]]
    main()
