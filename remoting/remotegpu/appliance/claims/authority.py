"""Permissions in Kubernetes: a pod may use claims that list it as a consumer, the operator may inspect and drain."""

from typing import Final

import grpc

from remotegpu.api.kubernetes import AUDIENCE, appliance_audience, pool_audience
from remotegpu.appliance.claims.leases import ClaimLeases
from remotegpu.appliance.claims.reviews import BusyError, Identity, Reviews, TokenRefusedError, UnreachableError
from remotegpu.appliance.leases.authority import Caller, Tenant
from remotegpu.appliance.refusal import RefusalError
from remotegpu.appliance.sessions.state import Lease, Session
from remotegpu.appliance.settings import Kubernetes
from remotegpu.appliance.shares.claims import Claim

# The longest time by which the watch may lag behind a pod that the operator has just started.
_WATCH_LAG_SECONDS: Final = 0.3
# The wait for memory of an ended lease, whose sessions are killed after two seconds.
_FREEING_SECONDS: Final = 4.0
_SHOWN: Final = 64


def audiences(ours: Kubernetes) -> tuple[str, ...]:
    """Returns the audiences that the appliance accepts: first that of the operator's token, then those of pods."""
    pools = (pool_audience(ours.pool),) if ours.pool else ()
    return (appliance_audience(ours.name), *pools, AUDIENCE)


class ClaimAuthority:
    def __init__(self, claims: ClaimLeases, reviews: Reviews, ours: Kubernetes) -> None:
        self._claims = claims
        self._reviews = reviews
        self._operator = ours.operator
        self._own_audience, *self._pods_audiences = audiences(ours)

    async def borrower(self, caller: Caller) -> str:
        del caller
        message = (
            "this appliance serves claims of Kubernetes and opens no lease; create a GPUClaim, or a pod with a share"
        )
        raise _refuse(grpc.StatusCode.PERMISSION_DENIED, message)

    async def host(self, caller: Caller, lease_id: str) -> str:
        await self.administrator(caller)
        claim = await self._claims.wait_for(lambda: self._arriving(lease_id), _WATCH_LAG_SECONDS)
        if claim is None:
            message = "no such claim is to move to this appliance"
            raise _refuse(grpc.StatusCode.NOT_FOUND, message, claim=lease_id)
        return ""

    def _arriving(self, lease_id: str) -> Claim | None:
        claim = self._claims.claim(lease_id)
        return claim if claim is not None and claim.arrives else None

    async def administrator(self, caller: Caller) -> None:
        identity = await self._identity(caller)
        if identity.account != self._operator:
            message = f"only the operator's account {self._operator} may do this"
            raise _refuse(grpc.StatusCode.PERMISSION_DENIED, message, who=identity)
        # An operator of the previous release has only the general token. A rollback must not lock it out.
        if identity.audiences.isdisjoint((self._own_audience, AUDIENCE)):
            message = f"the operator's token is not for this appliance: it wants one with audience {self._own_audience}"
            raise _refuse(grpc.StatusCode.UNAUTHENTICATED, message, who=identity)

    async def onlooker(self, caller: Caller) -> str | None:
        await self.administrator(caller)
        return None

    async def tenant(self, caller: Caller, lease_id: str, secret: str) -> Tenant:
        """Makes cheap checks first: no call reaches the API server unless it names a claim of this appliance."""
        del secret
        if moved := self._claims.moved(lease_id):
            await self._consumer(caller, lease_id, lease_id)
            raise moved
        claim = await self._claims.wait_for(lambda: self._claims.claim(lease_id), _WATCH_LAG_SECONDS)
        if claim is None:
            if not self._claims.known:
                message = "the appliance does not know its claims yet: the API server does not answer"
                raise _refuse(grpc.StatusCode.UNAVAILABLE, message, claim=lease_id)
            message = "no such claim is allocated on this appliance"
            raise _refuse(grpc.StatusCode.NOT_FOUND, message, claim=lease_id)
        identity = await self._consumer(caller, lease_id, str(claim))
        lease = await self._claims.wait_for(
            lambda: self._claims.lease(lease_id) if self._consumes(identity, lease_id) else None, _FREEING_SECONDS
        )
        if lease is None:
            message = f"the memory of claim {claim} is not free yet"
            raise _refuse(grpc.StatusCode.UNAVAILABLE, message, who=identity, claim=str(claim))
        return Tenant(lease, identity.pod_uid)

    async def owner(self, caller: Caller, lease_id: str, secret: str) -> Lease:
        del caller, secret
        message = "a claim's lease ends with the claim; delete the pod or the GPUClaim"
        raise _refuse(grpc.StatusCode.PERMISSION_DENIED, message, claim=lease_id)

    async def closer(self, caller: Caller, session: Session, secret: str) -> None:
        tenant = await self.tenant(caller, session.lease.lease_id, secret)
        if tenant.pod != session.pod:
            message, claim = "the session is another pod's", str(session.lease.claim)
            raise _refuse(grpc.StatusCode.PERMISSION_DENIED, message, claim=claim)

    async def _consumer(self, caller: Caller, lease_id: str, claim: str) -> Identity:
        """Returns the caller's identity if it is a pod that may use the claim. Raises RefusalError otherwise."""
        identity = await self._identity(caller, claim)
        if not identity.audiences.intersection(self._pods_audiences):
            message = f"the token is for none of the audiences {', '.join(self._pods_audiences)}"
            raise _refuse(grpc.StatusCode.UNAUTHENTICATED, message, who=identity, claim=claim)
        if not await self._claims.wait_for(lambda: self._consumes(identity, lease_id) or None, _WATCH_LAG_SECONDS):
            message = f"{identity} is no consumer of claim {claim}"
            raise _refuse(grpc.StatusCode.PERMISSION_DENIED, message, who=identity, claim=claim)
        return identity

    def _consumes(self, identity: Identity, lease_id: str) -> bool:
        users = self._claims.users(lease_id)
        return users is not None and identity.namespace == users.namespace and identity.pod_uid in users.pods

    async def _identity(self, caller: Caller, named: str = "") -> Identity:
        if not caller.token:
            message = "this appliance wants the token of a service account"
            raise _refuse(grpc.StatusCode.UNAUTHENTICATED, message, claim=named)
        try:
            return await self._reviews.identity(caller.token, caller.host)
        except TokenRefusedError as error:
            message = f"the API server does not accept the token: {error}"
            raise _refuse(grpc.StatusCode.UNAUTHENTICATED, message, claim=named) from None
        except BusyError as error:
            message = f"the API server is not asked whose token this is: {error}; try again later"
            raise _refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, message, claim=named) from None
        except UnreachableError as error:
            message = f"the API server cannot be asked whose token this is: {error}"
            raise _refuse(grpc.StatusCode.UNAVAILABLE, message, claim=named) from None


def _refuse(code: grpc.StatusCode, message: str, *, who: Identity | None = None, claim: str = "") -> RefusalError:
    named = repr(claim[:_SHOWN]) if claim else "-"
    return RefusalError(code, message, about=f"({who or 'nobody known'}) on claim {named}")
