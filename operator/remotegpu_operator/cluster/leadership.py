"""Leadership: only the holder of the Lease `remotegpu-operator` may write.

A holder that was stopped, or that cannot renew the Lease, must stop writing before another process begins to write. The
holder trusts a renewal for 10 s, counted from before it sent the renewal. A candidate takes over 15 s after it saw the
last renewal. Each process measures by its own monotonic clock, so no clocks are compared.
"""

import asyncio
import datetime
import logging
import time
from collections.abc import Callable
from typing import Final

from remotegpu.api.kubernetes import MANAGER_LABEL
from remotegpu_operator.cluster.kube import Api, ApiError, Object, Resource, Unanswered

_log = logging.getLogger(__name__)

LEASES: Final = Resource("coordination.k8s.io/v1", "leases", "Lease")
LEASE_NAME: Final = "remotegpu-operator"
LEASE_SECONDS: Final = 15
TRUST_SECONDS: Final = 10.0
_RENEW_SECONDS: Final = 2.0
# The timeout of a call. After a renewal without an answer there is time for another one.
CALL_SECONDS: Final = 3.0


class NotLeaderError(Exception):
    """This process does not hold the Lease, so it must not write."""


class Leadership:
    def __init__(self, api: Api, namespace: str, identity: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._namespace = namespace
        self._identity = identity
        self._clock = clock
        self._lease: Object | None = None
        # Whether a write of the Lease has had no answer: it may have been executed.
        self._unheard = False
        self._trusted_until = float("-inf")
        # Why this process cannot read or renew the Lease; empty if it can. Shown by the readiness probe.
        self.problem = "the API server has not answered yet"

    def check(self) -> None:
        """Raises NotLeaderError unless this process holds the Lease now."""
        if self._clock() >= self._trusted_until:
            raise NotLeaderError(f"{self._identity} does not hold the Lease {LEASE_NAME}")

    @property
    def held(self) -> bool:
        return self._clock() < self._trusted_until

    async def acquire(self) -> None:
        """Waits until this process holds the Lease."""
        seen: tuple[str, float] | None = None
        while True:
            try:
                lease = await self._read()
                if lease is None:
                    await self._write(None)
                    return
                version = lease["metadata"]["resourceVersion"]
                if seen is None or seen[0] != version:
                    seen = version, self._clock()
                spec = lease.get("spec", {})
                holder = spec.get("holderIdentity") or ""
                idle = self._clock() - seen[1]
                # A holder with our identity is this pod before a restart: no other process has this identity.
                if holder in {"", self._identity} or idle >= spec.get("leaseDurationSeconds", LEASE_SECONDS):
                    await self._write(lease)
                    return
            except ApiError as error:
                if not error.conflict:
                    self._report(f"the Lease cannot be taken: {error}")
            except Unanswered as error:
                self._report(f"the Lease cannot be taken: the API server does not answer ({error!r})")
            await asyncio.sleep(_RENEW_SECONDS)

    async def keep(self) -> None:
        """Renews the Lease every two seconds. Returns when it is lost."""
        while self.held:
            await asyncio.sleep(_RENEW_SECONDS)
            if not self.held:
                break
            try:
                await self._write(self._lease)
            except ApiError as error:
                if error.conflict or error.gone:
                    break
                self._report(f"the Lease cannot be renewed: {error}")
            except Unanswered as error:
                # The write may have been executed: the next attempt needs the Lease's new version.
                self._report(f"the Lease cannot be renewed: the API server does not answer ({error!r})")
                if not await self._still_ours():
                    break
        self._trusted_until = float("-inf")

    async def release(self) -> None:
        """Releases the Lease, so that another process can take over at once. Does nothing if it was never taken.

        Raises ApiError or one of `Unanswered` if the release fails: another process then waits until the Lease expires.
        """
        try:
            # `acquire` or `keep` was cancelled during a write that the server may have executed.
            ours = await self._read_ours() if self._unheard else self.held
            while ours and self._lease is not None:
                spec = self._lease["spec"] | {"holderIdentity": ""}
                try:
                    await self._api.replace(LEASES, self._namespace, self._lease | {"spec": spec})
                    return
                except ApiError as error:
                    if not error.conflict:
                        raise
                ours = await self._read_ours()
        finally:
            self._trusted_until = float("-inf")

    def _report(self, problem: str) -> None:
        self.problem = problem
        _log.warning("%s", problem)

    async def _still_ours(self) -> bool:
        try:
            return await self._read_ours()
        except (ApiError, *Unanswered):
            return True  # unknown: the Lease stays trusted until its time is over

    async def _read_ours(self) -> bool:
        lease = await self._read()
        if lease is None or lease.get("spec", {}).get("holderIdentity") != self._identity:
            return False
        self._lease = lease
        return True

    async def _read(self) -> Object | None:
        try:
            lease = await self._api.get(LEASES, self._namespace, LEASE_NAME)
        except ApiError as error:
            if not error.gone:
                raise
            lease = None
        self.problem = ""
        return lease

    async def _write(self, lease: Object | None) -> None:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        started = self._clock()
        spec = dict((lease or {}).get("spec", {}))
        if spec.get("holderIdentity") != self._identity:
            spec |= {"acquireTime": now, "leaseTransitions": spec.get("leaseTransitions", 0) + 1}
        spec |= {"holderIdentity": self._identity, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now}
        self._unheard = True
        if lease is None:
            labels = {MANAGER_LABEL: "remotegpu-operator"}
            body = {"metadata": {"name": LEASE_NAME, "namespace": self._namespace, "labels": labels}, "spec": spec}
            self._lease = await self._api.create(LEASES, self._namespace, body)
        else:
            self._lease = await self._api.replace(LEASES, self._namespace, lease | {"spec": spec})
        self._trusted_until = started + TRUST_SECONDS
        self._unheard = False
        self.problem = ""
