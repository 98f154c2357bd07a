"""Permissions. Two ways: tokens of a file and the secrets of leases; or, in Kubernetes, claims."""

from dataclasses import dataclass
from typing import Protocol

import grpc

from remotegpu.appliance.leases import Leases
from remotegpu.appliance.refusal import RefusalError
from remotegpu.appliance.state import Lease, Session
from remotegpu.appliance.tokens import TokenFile


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller, as far as the call itself names it."""

    method: str
    peer: str  # address and port
    token: str = ""
    connection: int | None = None  # the gateway's number

    @property
    def host(self) -> str:
        return self.peer.rpartition(":")[0]


@dataclass(frozen=True, slots=True)
class Tenant:
    """Someone who may use a lease; the pod is empty outside of Kubernetes."""

    lease: Lease
    pod: str = ""


class Authority(Protocol):
    """Each refuses by a RefusalError."""

    async def borrower(self, caller: Caller) -> None:
        """May the caller open a lease?"""

    async def administrator(self, caller: Caller) -> None:
        """May the caller see and drain everything?"""

    async def tenant(self, caller: Caller, lease_id: str, secret: str) -> Tenant:
        """May the caller use this lease?"""

    async def owner(self, caller: Caller, lease_id: str, secret: str) -> Lease:
        """May the caller end this lease?"""

    async def closer(self, caller: Caller, session: Session, secret: str) -> None:
        """May the caller end this session?"""


class SecretAuthority:
    """The one that opened a lease knows its secret; opening one takes a token, if the appliance wants tokens."""

    def __init__(self, leases: Leases, tokens: TokenFile | None) -> None:
        self._leases = leases
        self._tokens = tokens

    async def borrower(self, caller: Caller) -> None:
        if self._tokens is None:
            return
        if not caller.token:
            raise RefusalError(grpc.StatusCode.UNAUTHENTICATED, "this appliance wants a token")
        if self._tokens.name_of(caller.token) is None:
            raise RefusalError(grpc.StatusCode.UNAUTHENTICATED, "this appliance does not know the token")

    async def administrator(self, caller: Caller) -> None:
        await self.borrower(caller)

    async def tenant(self, caller: Caller, lease_id: str, secret: str) -> Tenant:
        return Tenant(await self.owner(caller, lease_id, secret))

    async def owner(self, caller: Caller, lease_id: str, secret: str) -> Lease:
        del caller
        return self._leases.find(lease_id, secret)

    async def closer(self, caller: Caller, session: Session, secret: str) -> None:
        await self.owner(caller, session.lease.lease_id, secret)
