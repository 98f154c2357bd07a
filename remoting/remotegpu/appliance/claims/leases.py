"""Keeps leases equal to claims: each claim that is allocated to this appliance has a lease, and there are no others."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from remotegpu.api.claims import lease_id_of
from remotegpu.appliance.leases.leases import Leases
from remotegpu.appliance.leases.suspension import Suspensions
from remotegpu.appliance.refusal import RefusalError
from remotegpu.appliance.sessions.state import Lease
from remotegpu.appliance.shares.allocation import LeasedGpus, NoRoomError
from remotegpu.appliance.shares.claims import BadClaimError, Claim, Users, claim_of_appliance, users_of_claim
from remotegpu.appliance.shares.views import PhysicalGpu

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

Object = Mapping[str, Any]


class ClaimLeases:
    """Receives every claim of the cluster. While the API server does not answer, the last known state stays valid."""

    def __init__(self, appliance: str, leases: Leases, suspensions: Suspensions, gpus: Sequence[PhysicalGpu]) -> None:
        self._appliance = appliance
        self._leases = leases
        self._suspensions = suspensions
        self._index = {gpu.uuid_text: index for index, gpu in enumerate(gpus)}
        self._claims: dict[str, Claim] = {}  # by the id of their lease
        # For each lease that has moved away: the pods that may learn its new place.
        self._users: dict[str, Users] = {}
        self._complained: dict[str, str] = {}
        self._change = asyncio.Event()
        self._placing = self._to_place = False
        self.known = False
        self.trouble = "the claims were not read yet"
        leases.when_released(self._place)

    def listed(self, claims: Iterable[Object]) -> None:
        """Takes a complete list of claims."""
        claims = list(claims)
        here = {claim.lease_id: claim for claim in map(self._read, claims) if claim is not None}
        self._users.clear()
        listed = {lease_id_of(claim["metadata"]["uid"]) for claim in claims}
        self._complained = {each: why for each, why in self._complained.items() if each in listed}
        for each in claims:
            self._note_users(each)
        for lease_id in self._claims.keys() - here.keys():
            self._forget(lease_id, "its claim was deleted")
        for claim in here.values():
            self._keep(claim)
        self._place()
        self.known, self.trouble = True, ""

    def changed(self, claim: Object) -> None:
        here = self._read(claim)
        self._note_users(claim)
        if here is not None:
            self._keep(here)
            self._place()
        else:
            self._forget(lease_id_of(claim["metadata"]["uid"]), "its claim is no longer allocated here")

    def deleted(self, claim: Object) -> None:
        lease_id = lease_id_of(claim["metadata"]["uid"])
        self._complained.pop(lease_id, None)
        self._users.pop(lease_id, None)
        self._forget(lease_id, "its claim was deleted")

    def unreachable(self, why: str) -> None:
        if why != self.trouble:
            _log.warning("the API server does not answer, what is known of claims stays valid: %s", why)
        self.trouble = why

    def unserved(self) -> dict[str, str] | None:
        """Returns why claims that are allocated here have no lease, by the ids of their leases. Any thread may call.

        Returns None while the claims are not known.
        """
        if not self.known:
            return None
        complained = self._complained.copy()
        return {lease_id: why for lease_id, why in complained.items() if self._leases.by_id(lease_id) is None}

    def claim(self, lease_id: str) -> Claim | None:
        return self._claims.get(lease_id)

    def placement(self, claim: Claim) -> LeasedGpus:
        gpus, sizes = tuple(self._index[gpu] for gpu, _ in claim.places), tuple(size for _, size in claim.places)
        return LeasedGpus(gpus, sizes, claim.compute)

    def moved(self, lease_id: str) -> RefusalError | None:
        """Returns the error that tells a consumer the new place of a moved lease; None if the lease has not moved."""
        return self._leases.moved_to(lease_id)

    def users(self, lease_id: str) -> Users | None:
        """Returns the pods that may use the claim of a lease, also of one that has moved away; None if unknown."""
        claim = self._claims.get(lease_id)
        return self._users.get(lease_id) if claim is None else claim.users

    def _note_users(self, claim: Object) -> None:
        lease_id = lease_id_of(claim["metadata"]["uid"])
        users = users_of_claim(claim) if self._leases.moved_to(lease_id) is not None else None
        if users is None:
            self._users.pop(lease_id, None)
        else:
            self._users[lease_id] = users

    def lease(self, lease_id: str) -> Lease | None:
        return self._leases.by_id(lease_id)

    async def wait_for(self, look: Callable[[], _T | None], seconds: float) -> _T | None:
        """Returns the first result of `look` that is not None, now or after a change; None after `seconds`.

        Callers use it because the watch may lag behind a pod.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while (found := look()) is None:
                    await self._change.wait()
                return found
        return None

    def _read(self, claim: Object) -> Claim | None:
        try:
            served = claim_of_appliance(claim, self._appliance)
            if served is not None and (strange := [gpu for gpu, _ in served.places if gpu not in self._index]):
                raise BadClaimError(f"there is no {strange[0]} here")
        except BadClaimError as error:
            metadata = claim["metadata"]
            self._complain(lease_id_of(metadata["uid"]), f"{metadata['namespace']}/{metadata['name']}", str(error))
            return None
        if served is None:
            self._complained.pop(lease_id_of(claim["metadata"]["uid"]), None)
        return served

    def _keep(self, claim: Claim) -> None:
        """Takes a claim over. An error in it is logged, and ends neither the watch nor the leases of other claims."""
        try:
            self._take(claim)
        except Exception:
            _log.exception("GPUClaim %s/%s cannot be used: correct or delete it", claim.namespace, claim.name)

    def _take(self, claim: Claim) -> None:
        lease_id = claim.lease_id
        before = self._claims.get(lease_id)
        if before is None or not claim.has_place_of(before):
            self._complained.pop(lease_id, None)
            self._forget(lease_id, "its claim was placed anew")
        self._claims[lease_id] = claim
        self._leases.update_claim(claim)
        if lease := self._leases.by_id(lease_id):
            self._suspensions.want(lease, claim.suspended)
            self._resize(lease, claim)

    def _resize(self, lease: Lease, claim: Claim) -> None:
        """Resizes a lease to its claim. On failure the lease keeps its size, and the operator gets `resize_problem`."""
        if claim.suspended or lease.suspended is not None or lease.arriving:
            return
        lease.resize_problem = ""
        if len(claim.sizes) != len(lease.placement.sizes):
            lease.resize_problem = f"Invalid: it resizes {len(claim.sizes)} of {len(lease.placement.sizes)} GPUs here"
        elif claim.sizes != lease.placement.sizes:
            try:
                self._leases.resize(lease, claim.sizes)
            except RefusalError as refusal:
                lease.resize_problem = refusal.message

    def _forget(self, lease_id: str, why: str) -> None:
        if self._claims.pop(lease_id, None) is not None:
            self._leases.end(lease_id, why)

    def _place(self) -> None:
        """Opens a lease for each claim without one. A claim whose memory is still being freed is tried again later."""
        self._to_place = True
        if self._placing:
            return
        self._placing = True
        try:
            # A resize in this loop may leave room for other claims.
            while self._to_place:
                self._to_place = False
                self._place_all()
        finally:
            self._placing = False
        self._tell()

    def _place_all(self) -> None:
        # An older claim goes first, so one that comes back with a backup takes no place from those that have run.
        for lease_id, claim in sorted(self._claims.items(), key=lambda each: each[1].turn):
            lease = self._leases.by_id(lease_id)
            if lease is not None and lease.resize_problem:
                self._resize(lease, claim)
            # A claim that had a lease before this appliance was started has no state to keep. A claim that moves is
            # skipped: the move itself opens its lease at the destination.
            if not (claim.suspended or claim.arrives or claim.leaves or lease is not None):
                try:
                    self._leases.place(claim, self.placement(claim))
                except NoRoomError as error:
                    # While memory is being freed, a refusal is no news, and an earlier one stays.
                    if not self._leases.ending:
                        self._complain(lease_id, str(claim), str(error))
                    continue
            self._complained.pop(lease_id, None)

    def _complain(self, lease_id: str, name: str, why: str) -> None:
        if self._complained.get(lease_id) != why:
            self._complained[lease_id] = why
            _log.warning("audit: refused a lease for claim %s: %s", name, why)

    def _tell(self) -> None:
        self._change.set()
        self._change = asyncio.Event()
