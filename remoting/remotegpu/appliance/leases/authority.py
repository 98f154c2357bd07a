"""Checks permissions by tokens and by the secrets of leases. In Kubernetes `claims.authority` does so by claims."""

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
    """The caller of a method, as the call itself identifies it."""

    method: str
    peer: str  # address and port
    token: str = ""
    connection: int | None = None  # the gateway's number of the connection

    @property
    def acceptor(self) -> str:
        """The id of the session whose acceptor calls, from the gateway's name of the peer; empty for other callers."""
        kind, _, session_id = self.peer.partition(":")
        return session_id if kind == "session" and self.connection is not None else ""

    @property
    def host(self) -> str:
        return self.peer.rpartition(":")[0]


@dataclass(frozen=True, slots=True)
class Tenant:
    """A user of a lease. `pod` is empty outside of Kubernetes."""

    lease: Lease
    pod: str = ""
    acceptor: bool = False  # the user is the acceptor of an offload session, which uses CUDA


class Authority(Protocol):
    """Checks of permissions. Each method raises RefusalError if the caller lacks the permission."""

    async def borrower(self, caller: Caller) -> str:
        """Checks that the caller may open a lease. Returns the name of the lease's owner."""

    async def host(self, caller: Caller, lease_id: str) -> str:
        """Checks that the caller may move a lease (in Kubernetes a claim's) here. Returns the name of its owner."""

    async def administrator(self, caller: Caller) -> None:
        """Checks that the caller may drain the appliance."""

    async def onlooker(self, caller: Caller) -> str | None:
        """Checks that the caller may list leases. Returns the owner whose leases it may see; None for all."""

    async def tenant(self, caller: Caller, lease_id: str, secret: str) -> Tenant:
        """Checks that the caller may use this lease."""

    async def owner(self, caller: Caller, lease_id: str, secret: str) -> Lease:
        """Checks that the caller may end this lease."""

    async def closer(self, caller: Caller, session: Session, secret: str) -> None:
        """Checks that the caller may end this session."""


class SecretAuthority:
    """Checks the secret of a lease for its use, and a token, if the appliance has tokens, for everything else."""

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
        """Returns the holder of the caller's token. Without tokens every caller is an administrator."""
        if self._tokens is None:
            return Holder("", Role.ADMIN)
        if not caller.token:
            raise RefusalError(grpc.StatusCode.UNAUTHENTICATED, self._tokens.wanted)
        holder = self._tokens.holder(caller.token)
        if holder is None:
            raise RefusalError(grpc.StatusCode.UNAUTHENTICATED, self._tokens.unknown)
        return holder


class WithAcceptors:
    """Adds acceptors of offload to another authority. An acceptor may only use CUDA on the lease of its own session.

    An acceptor has neither token nor secret: its connection identifies the session.
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
