"""`python undefended_appliance.py PATCH remotegpu appliance ...`: an appliance that lacks one defence in Python.

For positive controls of tests/attacker. The product has no such option: what is missing is patched out here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from remotegpu.appliance import cgroups, exports, gateway, grants, leases, server, service, sessions, workers
from remotegpu.appliance.authority import SecretAuthority
from remotegpu.appliance.state import Lease
from remotegpu.appliance.tokens import Holder, Role, TokenFile
from remotegpu.cli.app import main


def any_caller() -> None:
    """Who shows no token is somebody, too."""
    holder = SecretAuthority._holder

    def somebody(self: Any, caller: Any) -> Holder:
        return holder(self, caller) if caller.token else Holder("nobody", Role.ADMIN)

    SecretAuthority._holder = somebody  # type: ignore[method-assign]


def any_token() -> None:
    """A token that is in no file is an administrator's."""
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
    """The id of a lease is enough."""

    def find(self: leases.Leases, lease_id: str, secret: str) -> Lease:
        del secret
        return self._live[lease_id]

    leases.Leases.find = find  # type: ignore[method-assign]


def tickets_for_ever() -> None:
    """A ticket that was used is admitted again."""
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
    """A session is granted what it asks for, whatever the share."""

    def grant(self: grants.Quota, session: str, least: int, want: int) -> int:
        del want
        self.granted[session] = self.granted.get(session, 0) + least
        return least

    grants.Quota.grant = grant  # type: ignore[method-assign]


def one_list_of_exports() -> None:
    """What one lease exports, all may import."""
    everything: dict[str, exports.Export] = {}
    made = exports.Exports.__init__

    def together(self: exports.Exports, quotas: Any) -> None:
        made(self, quotas)
        self._live = everything

    exports.Exports.__init__ = together  # type: ignore[method-assign]


def workers_outlive_their_lease() -> None:
    """They are neither told nor killed, and keep the socket by which they know that the appliance lives."""

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
    """A zygote has the appliance's variables."""
    from remotegpu_offload.appliance import environments

    environments._PROCESSOR = tuple(os.environ)  # type: ignore[assignment,misc]


def memory_without_end() -> None:
    """An acceptor's cgroup limits its processes alone."""
    create = cgroups.Cgroups.create

    def unlimited(self: cgroups.Cgroups, name: str, memory_bytes: int, processes: int) -> cgroups.Group:
        return create(self, name, memory_bytes << 10, processes)

    cgroups.Cgroups.create = unlimited  # type: ignore[method-assign]


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
    )
}

if __name__ == "__main__":
    PATCHES[sys.argv[1]]()
    sys.argv = ["remotegpu", *sys.argv[3:]]
    main()
