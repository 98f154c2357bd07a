"""Permissions. Two ways: tokens of a file and the secrets of leases; or, in Kubernetes, claims."""

from dataclasses import dataclass
from typing import Protocol

import grpc

from remotegpu.appliance.leases.leases import Leases
from remotegpu.appliance.leases.tokens import Holder, Role, Tokens
from remotegpu.appliance.refusal import RefusalError
from remotegpu.appliance.sessions.sessions import Sessions
from remotegpu.appliance.sessions.state import Lease, Session


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller, as far as the call itself names it."""

    method: str
    peer: str  # address and port
    token: str = ""
    connection: int | None = None  # the gateway's number

    @property
    def acceptor(self) -> str:
        """The session whose acceptor calls, as the gateway names the connections that it hands out; else empty."""
        kind, _, session_id = self.peer.partition(":")
        return session_id if kind == "session" and self.connection is not None else ""

    @property
    def host(self) -> str:
        return self.peer.rpartition(":")[0]


@dataclass(frozen=True, slots=True)
class Tenant:
    """Someone who may use a lease; the pod is empty outside of Kubernetes."""

    lease: Lease
    pod: str = ""
    acceptor: bool = False  # it is a session of offload of the lease, which uses CUDA


class Authority(Protocol):
    """Each refuses by a RefusalError."""

    async def borrower(self, caller: Caller) -> str:
        """May the caller open a lease? The name of whose it will be."""

    async def host(self, caller: Caller, lease_id: str) -> str:
        """May the caller have a lease move here? The name of whose it will be. In Kubernetes it is that of a claim."""

    async def administrator(self, caller: Caller) -> None:
        """May the caller drain everything?"""

    async def onlooker(self, caller: Caller) -> str | None:
        """May the caller see what there is? The name of whose leases it sees; None: everybody's."""

    async def tenant(self, caller: Caller, lease_id: str, secret: str) -> Tenant:
        """May the caller use this lease?"""

    async def owner(self, caller: Caller, lease_id: str, secret: str) -> Lease:
        """May the caller end this lease?"""

    async def closer(self, caller: Caller, session: Session, secret: str) -> None:
        """May the caller end this session?"""


class SecretAuthority:
    """The one that opened a lease knows its secret; opening one takes a token, unless the appliance is for anybody."""

    def __init__(self, leases: Leases, tokens: Tokens | None) -> None:
        self._leases = leases
        self._tokens = tokens

    async def borrower(self, caller: Caller) -> str:
        return self._holder(caller).name

    async def host(self, caller: Caller, lease_id: str) -> str:
        del lease_id
        return await self.borrower(caller)

    async def administrator(self, caller: Caller) -> None:
        holder = self._holder(caller)
        if holder.role is not Role.ADMIN:
            message = f"{holder.name} is a user, and this is for administrators: [admin] in the appliance's token file"
            raise RefusalError(grpc.StatusCode.PERMISSION_DENIED, message)

    async def onlooker(self, caller: Caller) -> str | None:
        holder = self._holder(caller)
        return None if holder.role is Role.ADMIN else holder.name

    async def tenant(self, caller: Caller, lease_id: str, secret: str) -> Tenant:
        return Tenant(await self.owner(caller, lease_id, secret))

    async def owner(self, caller: Caller, lease_id: str, secret: str) -> Lease:
        del caller
        return self._leases.find(lease_id, secret)

    async def closer(self, caller: Caller, session: Session, secret: str) -> None:
        await self.owner(caller, session.lease.lease_id, secret)

    def _holder(self, caller: Caller) -> Holder:
        """Without tokens everybody is an administrator."""
        if self._tokens is None:
            return Holder("", Role.ADMIN)
        if not caller.token:
            raise RefusalError(grpc.StatusCode.UNAUTHENTICATED, self._tokens.wanted)
        holder = self._tokens.holder(caller.token)
        if holder is None:
            raise RefusalError(grpc.StatusCode.UNAUTHENTICATED, self._tokens.unknown)
        return holder


class WithAcceptors:
    """Another authority, and acceptors of offload: they use CUDA on the lease of their own session and may do nothing
    else, whatever they know. Their connection says which session that is; they have neither token nor secret.
    """

    def __init__(self, others: Authority, sessions: Sessions) -> None:
        self._others = others
        self._sessions = sessions

    async def borrower(self, caller: Caller) -> str:
        self._no_acceptor(caller)
        return await self._others.borrower(caller)

    async def host(self, caller: Caller, lease_id: str) -> str:
        self._no_acceptor(caller)
        return await self._others.host(caller, lease_id)

    async def administrator(self, caller: Caller) -> None:
        self._no_acceptor(caller)
        await self._others.administrator(caller)

    async def onlooker(self, caller: Caller) -> str | None:
        self._no_acceptor(caller)
        return await self._others.onlooker(caller)

    async def tenant(self, caller: Caller, lease_id: str, secret: str) -> Tenant:
        if not caller.acceptor:
            return await self._others.tenant(caller, lease_id, secret)
        session = self._sessions.find(caller.acceptor)
        if session is None or session.ended:
            raise _refuse("its session has ended: open another one")
        return Tenant(session.lease, session.pod, acceptor=True)

    async def owner(self, caller: Caller, lease_id: str, secret: str) -> Lease:
        self._no_acceptor(caller)
        return await self._others.owner(caller, lease_id, secret)

    async def closer(self, caller: Caller, session: Session, secret: str) -> None:
        self._no_acceptor(caller)
        await self._others.closer(caller, session, secret)

    def _no_acceptor(self, caller: Caller) -> None:
        if caller.acceptor:
            raise _refuse("an acceptor uses CUDA on its own lease, and may do nothing else here")


def _refuse(message: str) -> RefusalError:
    return RefusalError(grpc.StatusCode.PERMISSION_DENIED, message)
