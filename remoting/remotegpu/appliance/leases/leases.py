"""Leases: a client opens one and holds it by a connection, or the appliance places it for a claim."""

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Final

import grpc

from remotegpu.api.quantities import Ask, Compute, format_bytes
from remotegpu.appliance._generated.gateway_events import UsedTime
from remotegpu.appliance._generated.gateway_orders import LeasePart
from remotegpu.appliance.gateway import Gateway
from remotegpu.appliance.handover import State
from remotegpu.appliance.metrics import Counters
from remotegpu.appliance.refusal import RefusalError
from remotegpu.appliance.sessions.budgets import part_of_sessions
from remotegpu.appliance.sessions.exports import Exports
from remotegpu.appliance.sessions.sessions import CUDA_ERROR_DEVICE_UNAVAILABLE, Sessions
from remotegpu.appliance.sessions.state import Lease
from remotegpu.appliance.settings import Limits
from remotegpu.appliance.shares.allocation import GpuLeases, ImpossibleError, LeasedGpus, NoRoomError
from remotegpu.appliance.shares.claims import Claim
from remotegpu.appliance.shares.grants import Quota
from remotegpu.appliance.shares.views import PhysicalGpu, devices_of_lease

_log = logging.getLogger(__name__)

# The lifetime in seconds of a lease without a holding connection, after its grant or after a restart of the gateway.
HOLD_SECONDS: Final = 10.0
_TELL_WAITING_SECONDS: Final = 1.0
# The key of a refusal's metadata with the new place of a moved lease, for the client library.
_MOVED_METADATA: Final = "remotegpu-moved"
_MOST_MOVED: Final = 4096
_MOST_ENDED: Final = 256


@dataclass(frozen=True, slots=True)
class Waiting:
    reason: str
    ahead: int
    seconds: float


class Leases:
    """All leases of the appliance, and the requests that wait for one."""

    def __init__(
        self,
        gpus: Sequence[PhysicalGpu],
        allocator: GpuLeases,
        gateway: Gateway,
        sessions: Sessions,
        limits: Limits,
        grace_seconds: int,
        counters: Counters,
    ) -> None:
        """Starts without leases. A lease lives `grace_seconds` after its holding connection has ended."""
        self.allocator = allocator
        self.draining = False
        # Return the reason why no session can be opened; empty if one can. The appliance sets them.
        self.shortage: Callable[[], str] = str
        self.look_for_shortage: Callable[[], str] = str
        self._gateway = gateway
        self._release_listeners: list[Callable[[], None]] = []
        self._gpus = gpus
        self._sessions = sessions
        sessions.leases = self.all
        self._limits = limits
        self.grace_seconds = grace_seconds
        self._counters = counters
        self._live: dict[str, Lease] = {}
        # Waiting requests by the id of the later lease: the owner, and a future for the placement.
        self._waiting: dict[str, tuple[str, asyncio.Future[LeasedGpus]]] = {}
        # Ended leases, kept because the gateway reports their last usage after the end.
        self._ended: dict[str, Lease] = {}
        self._endings: set[asyncio.Task[None]] = set()
        # Ended leases whose share is not free yet.
        self._freeing: set[str] = set()
        # Secrets and new places of leases that moved away.
        self._moved: dict[str, tuple[str, str]] = {}
        # A timer for the next time when a reservation of a waiting request begins or ends.
        self._reserved: asyncio.TimerHandle | None = None
        self.none_left = asyncio.Event()
        self.none_left.set()

    def all(self) -> list[Lease]:
        return list(self._live.values())

    @property
    def ending(self) -> bool:
        """Whether memory will become free because a lease has ended. No longer true when `when_released` is called."""
        return bool(self._freeing)

    def when_released(self, listener: Callable[[], None]) -> None:
        """Registers a callback for each time when a share becomes free."""
        self._release_listeners.append(listener)

    def by_id(self, lease_id: str) -> Lease | None:
        return self._live.get(lease_id)

    def find(self, lease_id: str, secret: str) -> Lease:
        lease = self._live.get(lease_id)
        moved = self.moved_to(lease_id)
        if moved is not None and hmac.compare_digest(self._moved[lease_id][0].encode(), secret.encode()):
            raise moved
        if lease is None or not hmac.compare_digest(lease.secret.encode(), secret.encode()):
            raise RefusalError(
                grpc.StatusCode.NOT_FOUND,
                "no such lease, or not its secret: the lease has ended; start the program again under `remotegpu run`",
            )
        return lease

    async def open(self, ask: Ask, client: str, owner: str, *, wait: bool) -> AsyncIterator[Waiting | Lease]:
        """Yields a `Waiting` once a second while the request waits, and at last the lease. Raises RefusalError."""
        self._require_place(owner)
        lease_id = secrets.token_hex(16)
        try:
            self.allocator.submit(lease_id, ask, time.monotonic(), owner)
        except ImpossibleError as error:
            message = f"{error}; ask for less, or another appliance"
            raise RefusalError(grpc.StatusCode.FAILED_PRECONDITION, message) from None
        placed: asyncio.Future[LeasedGpus] = asyncio.get_running_loop().create_future()
        self._waiting[lease_id] = owner, placed
        since = time.monotonic()
        try:
            self.settle()
            while not placed.done():
                reason = self.allocator.reason(lease_id)
                if not wait:
                    raise RefusalError(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
                yield Waiting(reason, self.allocator.ahead(lease_id), time.monotonic() - since)
                await asyncio.wait({placed}, timeout=_TELL_WAITING_SECONDS)
            self._counters.lease_wait.observe(time.monotonic() - since)
            lease = self._create(lease_id, client, placed.result())
            lease.owner = owner
            self._gateway.admit_lease(lease.lease_id, lease.secret)
            self._expect_holder(lease, HOLD_SECONDS)
        finally:
            self._waiting.pop(lease_id, None)
            if lease_id not in self._live:
                self.allocator.withdraw(lease_id)
                self.settle()
        yield lease

    def receive(
        self, lease_id: str, secret: str, client: str, owner: str, wanted: Ask | LeasedGpus, claim: Claim | None = None
    ) -> Lease:
        """Creates the lease of a move to this appliance, with its old id and secret. It is unusable until `settled`.

        The lease of a claim gets exactly the GPUs of the claim. Raises RefusalError.
        """
        try:
            if claim is None:
                self._require_place(owner)
        except RefusalError as refusal:
            raise RefusalError(refusal.code, f"NoRoom: {refusal.message}") from None
        if lease_id in self._live or lease_id in self._waiting or self.allocator.has(lease_id):
            message = "NoRoom: it is there already, or what it had there is still being freed"
            raise RefusalError(grpc.StatusCode.FAILED_PRECONDITION, message)
        placement = wanted if isinstance(wanted, LeasedGpus) else self._placed_now(lease_id, owner, wanted)
        if isinstance(wanted, LeasedGpus):
            try:
                self.allocator.place(lease_id, wanted, owner)
            except NoRoomError as error:
                raise RefusalError(grpc.StatusCode.RESOURCE_EXHAUSTED, f"NoRoom: {error}") from None
        lease = self._create(lease_id, client, placement, secret)
        lease.owner, lease.claim, lease.arriving = owner, claim, True
        lease.running.clear()
        return lease

    def _placed_now(self, lease_id: str, owner: str, ask: Ask) -> LeasedGpus:
        """Places a request at once. Raises RefusalError if it would have to wait."""
        try:
            self.allocator.submit(lease_id, ask, time.monotonic(), owner)
        except ImpossibleError as error:
            raise RefusalError(grpc.StatusCode.FAILED_PRECONDITION, f"NoRoom: {error}") from None
        placed: asyncio.Future[LeasedGpus] = asyncio.get_running_loop().create_future()
        self._waiting[lease_id] = owner, placed
        self.settle()
        del self._waiting[lease_id]
        if not placed.done():
            reason = self.allocator.reason(lease_id)
            self.allocator.withdraw(lease_id)
            raise RefusalError(grpc.StatusCode.RESOURCE_EXHAUSTED, f"NoRoom: {reason}")
        return placed.result()

    def settled(self, lease: Lease) -> None:
        """Opens a lease whose move to this appliance is complete. Its holder reconnects."""
        self._moved.pop(lease.lease_id, None)
        lease.arriving = False
        lease.running.set()
        if lease.claim is None:
            self._gateway.admit_lease(lease.lease_id, lease.secret)
            self._expect_holder(lease, max(HOLD_SECONDS, self.grace_seconds))

    def moved(self, lease: Lease, to: str) -> None:
        """Ends a lease that has moved to the appliance `to`."""
        self._moved[lease.lease_id] = lease.secret, to
        if len(self._moved) > _MOST_MOVED:
            del self._moved[next(iter(self._moved))]
        self._gateway.moved(lease.lease_id, lease.secret, to)
        self.end(lease.lease_id, "it has moved to another appliance")

    def moved_to(self, lease_id: str) -> RefusalError | None:
        """Returns the error for a moved lease, from which the client library gets the new place; None if not moved."""
        if lease_id not in self._moved:
            return None
        _, to = self._moved[lease_id]
        return RefusalError(grpc.StatusCode.NOT_FOUND, f"the lease has moved to {to}", ((_MOVED_METADATA, to),))

    def _require_place(self, owner: str) -> None:
        """Raises RefusalError if the appliance opens no lease now, or if the appliance or the owner is at its limit."""
        if self.draining:
            message = "this appliance is draining and opens no new lease; try another one"
            raise RefusalError(grpc.StatusCode.FAILED_PRECONDITION, message)
        if shortage := self.look_for_shortage():
            message = f"this appliance opens no lease now: {shortage}; or use another appliance"
            raise RefusalError(grpc.StatusCode.RESOURCE_EXHAUSTED, message)
        if len(self._live) + len(self._waiting) >= self._limits.leases:
            raise RefusalError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"this appliance has its limit of {self._limits.leases} leases; try again later",
            )
        most = max(1, self._limits.leases // 2)
        if owner and self._places_of(owner) >= most:
            raise RefusalError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{owner} has its limit of {most} leases and waiting requests (half of --max-leases); "
                "end some, or use another appliance",
            )

    def _places_of(self, owner: str) -> int:
        waiting = sum(each == owner for each, _ in self._waiting.values())
        return waiting + sum(lease.owner == owner for lease in self._live.values())

    def place(self, claim: Claim, placement: LeasedGpus) -> None:
        """Creates the lease of a claim. Raises NoRoomError."""
        self.allocator.place(claim.lease_id, placement)
        self._moved.pop(claim.lease_id, None)
        lease = self._create(claim.lease_id, f"claim {claim}", placement)
        lease.claim = claim
        _log.info("lease %s of claim %s begins", lease.lease_id[:8], claim)

    def update_claim(self, claim: Claim) -> None:
        """Stores the new state of a claim, and ends the sessions of pods that may no longer use the claim."""
        lease = self._live.get(claim.lease_id)
        if lease is None or lease.claim == claim:
            return
        lease.claim = claim
        for session in list(lease.sessions.values()):
            if session.pod not in claim.consumers:
                why = "this pod may no longer use the claim"
                self._spawn(self._sessions.end(session, CUDA_ERROR_DEVICE_UNAVAILABLE, why))

    def held(self, lease_id: str) -> None:
        """Handles the gateway's report that the holding connection is open."""
        lease = self._live.get(lease_id)
        if lease is not None and lease.expiry is not None:
            lease.expiry.cancel()
            lease.expiry = None

    def gone(self, lease_id: str) -> None:
        """Handles the gateway's report that the holding connection has ended."""
        if self.grace_seconds == 0:
            self.end(lease_id, "its holder is gone")
        elif lease := self._live.get(lease_id):
            self._expect_holder(lease, self.grace_seconds)

    def readmit(self) -> None:
        """Sends all leases to a new gateway. Their holders then reconnect."""
        for lease in self._live.values():
            if lease.claim is None:
                self._gateway.admit_lease(lease.lease_id, lease.secret)
                self._expect_holder(lease, max(HOLD_SECONDS, self.grace_seconds))

    def end(self, lease_id: str, reason: str) -> asyncio.Task[None] | None:
        """Ends a lease and its sessions. Its share becomes free only when the last worker has ended.

        Returns a task that ends at that time; None if there is no such lease.
        """
        lease = self._live.pop(lease_id, None)
        if lease is None:
            return None
        lease.ended = True
        if lease.expiry is not None:
            lease.expiry.cancel()
        self._ended[lease_id] = lease
        if len(self._ended) > _MOST_ENDED:
            del self._ended[next(iter(self._ended))]
        self._gateway.forget(lease_id)
        if waiting := self._waiting.get(lease_id):
            waiting[1].cancel()
        # Wakes callers that wait to open a session; they find that the lease has ended.
        lease.running.set()
        _log.info("lease %s (%s) ends: %s", lease_id[:8], lease.client, reason)
        self._freeing.add(lease_id)
        return self._spawn(self._release(lease, reason))

    async def finish_end(self, lease_id: str) -> None:
        """Waits until the share of one ending lease is free."""
        while lease_id not in self._live and self.allocator.has(lease_id) and self._endings:
            await asyncio.wait(self._endings, return_when=asyncio.FIRST_COMPLETED)

    async def finish_ends(self) -> None:
        """Waits until the shares of all ending leases are free."""
        await asyncio.gather(*self._endings)

    def handed(self) -> State:
        """Returns the state for `adopt`."""
        return {"leases": [self._handed(lease) for lease in self._live.values()], "moved": self._moved}

    def _handed(self, lease: Lease) -> State:
        expiry = lease.expiry
        return {
            "lease_id": lease.lease_id,
            "secret": lease.secret,
            "client": lease.client,
            "owner": lease.owner,
            "gpus": lease.placement.gpus,
            "sizes": lease.placement.sizes,
            "compute": (lease.placement.compute.milli, lease.placement.compute.limit_milli),
            "used_nanoseconds": [busy.total_nanoseconds for busy in lease.busy],
            "granted": [quota.granted for quota in lease.quotas],
            "exports": lease.exports.handed(),
            "since": lease.since,
            "problem": lease.problem,
            "expires_in": None if expiry is None else max(0.0, expiry.when() - asyncio.get_running_loop().time()),
        }

    def adopt(self, state: State) -> None:
        """Takes over the leases from a state that `handed` returned. The gateway already knows them."""
        self._moved = {name: (secret, to) for name, (secret, to) in state["moved"].items()}
        for each in state["leases"]:
            compute = Compute(*each.get("compute", ()))
            placement = LeasedGpus(tuple(each["gpus"]), tuple(each["sizes"]), compute)
            self.allocator.place(each["lease_id"], placement, each["owner"])
            lease = self._create(each["lease_id"], each["client"], placement, each["secret"])
            lease.owner, lease.since, lease.problem = each["owner"], each["since"], each["problem"]
            for quota, granted in zip(lease.quotas, each["granted"], strict=True):
                quota.granted.update(granted)
            for busy, used in zip(lease.busy, each.get("used_nanoseconds", ()), strict=False):
                busy.total_nanoseconds = used
            lease.exports.adopt(each["exports"])
            if each["expires_in"] is not None:
                self._expect_holder(lease, each["expires_in"])

    async def end_all(self, reason: str) -> None:
        for lease_id in list(self._live):
            self.end(lease_id, reason)
        await asyncio.gather(*self._endings)

    def sizes(self, lease: Lease, ask: Ask) -> tuple[int, ...]:
        """Returns the bytes that the request `ask` would take on each GPU of the lease."""
        return tuple(ask.bytes_of(self.allocator.gpus[gpu].shareable) for gpu in lease.placement.gpus)

    def resize(self, lease: Lease, sizes: tuple[int, ...]) -> None:
        """Sets the bytes that a lease has on each GPU. Sessions keep the memory that they have.

        Raises RefusalError, and then leaves the lease unchanged.
        """
        if not lease.running.is_set():
            message = "Suspended: a lease is resized while it runs: resume it first"
            raise RefusalError(grpc.StatusCode.FAILED_PRECONDITION, message)
        for gpu, quota, size in zip(lease.placement.gpus, lease.quotas, sizes, strict=True):
            if size < quota.used:
                message = f"InUse: its programs have {format_bytes(quota.used)} of gpu {gpu}: end some, or take as much"
                raise RefusalError(grpc.StatusCode.FAILED_PRECONDITION, message)
        try:
            lease.placement = self.allocator.resize(lease.lease_id, sizes, time.monotonic())
        except NoRoomError as error:
            raise RefusalError(grpc.StatusCode.RESOURCE_EXHAUSTED, f"NoRoom: {error}") from None
        lease.parts = self._parts(lease.placement)
        self._divide_time(lease)
        for device, quota, size in zip(lease.devices, lease.quotas, lease.placement.sizes, strict=True):
            device.memory_bytes = quota.limit = size
        self._released()

    def lend(self, lease: Lease, kept: tuple[int, ...]) -> None:
        """Frees the share of a suspended lease for others, except the bytes `kept`."""
        if lease.lease_id in self._live:
            self.allocator.shrink(lease.lease_id, kept)
            self._released()

    async def reclaim(self, lease: Lease) -> bool:
        """Waits until the lease has its whole share again. Returns False if the lease ended before."""
        lease_id = lease.lease_id
        if lease_id not in self._live:
            return False
        whole: asyncio.Future[LeasedGpus] = asyncio.get_running_loop().create_future()
        self._waiting[lease_id] = lease.owner, whole
        self.allocator.submit_again(lease_id, lease.placement, time.monotonic())
        self.settle()
        try:
            await whole
        except asyncio.CancelledError:
            return False
        finally:
            self._waiting.pop(lease_id, None)
        return lease_id in self._live

    def waits(self, lease_id: str) -> str:
        """Returns the reason why a request or a suspended lease waits for a share; empty if it does not wait."""
        return self.allocator.reason(lease_id) if lease_id in self._waiting else ""

    def settle(self) -> None:
        """Places waiting requests. To be called after a share became free or a reservation ended."""
        now = time.monotonic()
        for lease_id, placement in self.allocator.settle(now):
            _, placed = self._waiting.get(lease_id, ("", None))
            if placed is None or placed.cancelled():
                self.allocator.withdraw(lease_id)
            else:
                placed.set_result(placement)
        if self._reserved is not None:
            self._reserved.cancel()
        change = self.allocator.next_change(now)
        loop = asyncio.get_running_loop()
        self._reserved = None if change is None else loop.call_later(change - now, self.settle)

    async def _release(self, lease: Lease, reason: str) -> None:
        code = CUDA_ERROR_DEVICE_UNAVAILABLE
        try:
            await asyncio.gather(
                *(
                    self._sessions.end(session, code, f"the lease has ended: {reason}")
                    for session in list(lease.sessions.values())
                )
            )
            await self._sessions.end_group(lease)
        finally:
            self._freeing.discard(lease.lease_id)
        self.allocator.withdraw(lease.lease_id)
        self._released()
        if not self._live:
            self.none_left.set()

    def _released(self) -> None:
        self.settle()
        for listener in self._release_listeners:
            listener()

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
        return task

    def _create(self, lease_id: str, client: str, placement: LeasedGpus, secret: str = "") -> Lease:
        devices = devices_of_lease(self._gpus, placement.gpus, lease_id, placement.sizes)
        quotas = [Quota(size) for size in placement.sizes]
        secret = secret or secrets.token_hex(32)
        lease = Lease(lease_id, secret, client, placement, devices, quotas, Exports(quotas))
        lease.parts = self._parts(placement)
        self._live[lease_id] = lease
        self._divide_time(lease)
        self.none_left.clear()
        self._counters.leases.inc()
        return lease

    def _divide_time(self, lease: Lease) -> None:
        """Sends the gateway the lease's part of each GPU's time, if the appliance divides time."""
        if not self.allocator.divides_time:
            return
        placement = lease.placement
        self._gateway.set_parts(
            lease.lease_id,
            [
                LeasePart(
                    gpu=gpu,
                    weight=self.allocator.guaranteed(gpu, size, placement.compute),
                    limit=placement.compute.limit_milli,
                )
                for gpu, size in zip(placement.gpus, placement.sizes, strict=True)
            ],
        )

    def used(self, used: UsedTime) -> None:
        """Counts what a lease has used of a GPU, as the gateway reports."""
        lease = self._live.get(used.lease) or self._ended.get(used.lease)
        if lease is None or used.gpu not in lease.placement.gpus:
            return
        lease.busy[lease.placement.gpus.index(used.gpu)].add(used.nanoseconds)
        namespace = lease.claim.namespace if lease.claim else ""
        self._counters.gpu_seconds.labels(gpu=str(used.gpu), namespace=namespace).inc(used.nanoseconds / 1e9)

    def _parts(self, placement: LeasedGpus) -> tuple[int, ...]:
        """Returns the number of sessions that a lease may have on each of its GPUs."""
        gpus = [self.allocator.gpus[gpu] for gpu in placement.gpus]
        return tuple(
            part_of_sessions(self._limits.sessions_per_gpu, size, gpu.shareable)
            for gpu, size in zip(gpus, placement.sizes, strict=True)
        )

    def _expect_holder(self, lease: Lease, seconds: float) -> None:
        if lease.expiry is not None:
            lease.expiry.cancel()
        reason = f"nobody has held it for {seconds:.0f} s"
        lease.expiry = asyncio.get_running_loop().call_later(seconds, self.end, lease.lease_id, reason)
