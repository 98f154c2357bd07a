"""Polls each appliance every two seconds for its report: GPUs, environments, leases and sessions."""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from remotegpu.api.claims import GPUClaim
from remotegpu.api.failures import ApplianceError, Failure
from remotegpu.api.kubernetes import server_name
from remotegpu.api.pools import EnvironmentStatus, GpuStatus
from remotegpu.rpc import pb
from remotegpu.rpc.client import Access, ApplianceClient, parse_endpoint
from remotegpu_operator.appliances.tokens import NoTokenError, Tokens

INTERVAL_SECONDS: Final = 2.0
# The time of three missing answers.
LOST_SECONDS: Final = 6.0
_THREADS: Final = 16


@dataclass(frozen=True, slots=True)
class Target:
    """One run of an appliance. After a restart the appliance is another target, even at the same address."""

    name: str
    incarnation: str
    address: str
    audience: str  # the audience of the token that the appliance accepts


@dataclass(frozen=True, slots=True)
class Suspended:
    """An appliance's report on a claim that is being suspended or is suspended."""

    kept: Mapping[str, int] = field(default_factory=dict)  # bytes that the driver keeps, by GPU; empty while it runs
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    gpus: tuple[GpuStatus, ...]
    environments: tuple[EnvironmentStatus, ...]
    draining: bool
    # Why the appliance opens no session; empty if it opens sessions.
    full: str = ""
    # By the claim's uid.
    suspended: Mapping[str, Suspended] = field(default_factory=dict)
    # The leases' memory in bytes, by the claim's uid and GPU.
    sizes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    # The uids of claims with a session.
    in_use: frozenset[str] = frozenset()
    # The number of sessions, by the claim's uid. A change alone is no news.
    sessions: Mapping[str, int] = field(default_factory=dict, compare=False)
    driver: int = 0  # the version of CUDA that the driver provides
    # Why the appliance serves no claim that is allocated there, by the id of the claim's lease. None if it has not read
    # the claims yet; an appliance of the release before does not say so.
    unserved: Mapping[str, str] | None = field(default_factory=dict)


@dataclass(slots=True)
class Contact:
    """The last report of an appliance and the time of its request. `problem` is why there is no later report.

    `tried` is set after the first attempt.
    """

    target: Target
    since: float
    tried: asyncio.Event = field(default_factory=asyncio.Event)
    report: Report | None = None
    problem: str = ""
    # True if the appliance existed when this process became the leader: it may have answered the previous leader.
    inherited: bool = False

    def fresh(self) -> bool:
        return (self.report is not None or self.inherited) and time.monotonic() - self.since < LOST_SECONDS


class Inventory:
    """Polls each target in a thread, because the gRPC client blocks. Also moves leases between appliances.

    `changed` is set when a report has changed.
    """

    def __init__(self, tokens: Tokens, changed: asyncio.Event) -> None:
        self._tokens = tokens
        # By appliance: the last token that was sent to it.
        self._shown: dict[str, str] = {}
        self._changed = changed
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="inventory")
        self._movers = ThreadPoolExecutor(_THREADS, thread_name_prefix="move")
        self._closed = threading.Event()
        # Clients with a move in progress.
        self._moving: set[ApplianceClient] = set()
        self._contacts: dict[str, Contact] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # gRPC and Python's TLS read the authority from a file. The file is in memory, so a full disk does no harm.
        self._ca_file = os.memfd_create("ca.crt")
        self._ca = Path(f"/proc/self/fd/{self._ca_file}")
        self._bundle = ""

    def set_bundle(self, bundle: str) -> None:
        if bundle != self._bundle:
            self._bundle = bundle
            self._ca.write_text(bundle)

    def set_targets(self, targets: list[Target], *, inherited: bool) -> None:
        wanted = {target.name: target for target in targets}
        self._tokens.keep(target.audience for target in targets)
        for name, contact in list(self._contacts.items()):
            if wanted.get(name) != contact.target:
                del self._contacts[name]
                self._shown.pop(name, None)
                self._tasks.pop(name).cancel()
        for name, target in wanted.items():
            if name not in self._contacts:
                self._contacts[name] = contact = Contact(target, time.monotonic(), inherited=inherited)
                self._tasks[name] = asyncio.create_task(self._follow(contact))

    def contact(self, name: str) -> Contact | None:
        return self._contacts.get(name)

    async def move(self, claim: GPUClaim, source: str, target: str) -> str:
        """Moves a claim's lease from one appliance to another. Returns "" on success, or why the move failed.

        A move that an earlier operator process began is completed. If this process ends, the move continues.
        """
        return await asyncio.get_running_loop().run_in_executor(self._movers, self._move, claim, source, target)

    def _move(self, claim: GPUClaim, source: str, target: str) -> str:
        problem = ""
        while not self._closed.is_set() and target in self._contacts:
            try:
                with contextlib.closing(self._client_of(target)) as there:
                    arriving = _has(there.inventory(), claim.uid)
                    if arriving is False:
                        return ""
                    if arriving is None and problem:
                        return problem
                    if arriving is None:
                        self._carry(source, there, claim.lease_id)
                        return ""
            except (ApplianceError, OSError, KeyError) as error:
                # The move may have succeeded despite the error: the next loop asks the target.
                problem = str(error)
            self._closed.wait(INTERVAL_SECONDS)
        return problem or f"Unreachable: {target} has no address"

    def _carry(self, source: str, there: ApplianceClient, lease_id: str) -> None:
        with contextlib.closing(self._client_of(source)) as here:
            self._moving.add(here)
            try:
                with here.move_lease(lease_id, there, there.invite_lease(lease_id)) as events:
                    for _ in events:
                        pass
            finally:
                self._moving.discard(here)

    def _client_of(self, name: str) -> ApplianceClient:
        return self._client(self._contacts[name].target, self._shown[name])

    async def all_tried(self, seconds: float) -> None:
        """Waits until every target has been polled once, for at most `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for contact in list(self._contacts.values()):
                    await contact.tried.wait()

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._closed.set()
        for client in list(self._moving):
            client.close()
        for threads in (self._threads, self._movers):
            threads.shutdown(wait=False, cancel_futures=True)
        os.close(self._ca_file)

    async def _follow(self, contact: Contact) -> None:
        loop = asyncio.get_running_loop()
        client: ApplianceClient | None = None
        used: tuple[str, str] | None = None
        try:
            while True:
                asked = time.monotonic()
                before = contact.report, contact.tried.is_set(), contact.fresh()
                try:
                    token = await self._tokens.token(contact.target.audience)
                    self._shown[contact.target.name] = token
                    if client is None or used != (token, self._bundle):
                        if client is not None:
                            client.close()
                        used = token, self._bundle
                        client = self._client(contact.target, token)
                    report = await loop.run_in_executor(self._threads, _ask, client)
                    contact.report, contact.problem, contact.since = report, "", asked
                except ApplianceError as error:
                    # The client's message about a failed connection is for users of the command line.
                    silent = error.failure is Failure.UNAVAILABLE
                    contact.problem = f"nothing answers at {contact.target.address}" if silent else str(error)
                    if silent and client is not None:
                        # A gateway counts a call that its client gave up until the connection ends.
                        client.close()
                        client = None
                except NoTokenError as error:
                    contact.problem = str(error)
                contact.tried.set()
                if before != (contact.report, True, contact.fresh()):
                    self._changed.set()
                await asyncio.sleep(max(0.0, asked + INTERVAL_SECONDS - time.monotonic()))
        finally:
            if client is not None:
                client.close()

    def _client(self, target: Target, token: str) -> ApplianceClient:
        access = Access(token=token, ca=self._ca, server_name=server_name(target.name))
        return ApplianceClient(parse_endpoint(target.address), access)


def _has(reply: pb.InventoryReply, uid: str) -> bool | None:
    """Returns whether the claim's lease is still arriving at the appliance; None if the appliance has no such lease."""
    return next((lease.arriving for lease in reply.leases if lease.claim_uid == uid), None)


def _ask(client: ApplianceClient) -> Report:
    return report_of(client.inventory())


def report_of(reply: pb.InventoryReply) -> Report:
    gpus = tuple(
        GpuStatus(
            uuid=gpu.uuid,
            model=gpu.name,
            memory=gpu.total_bytes,
            shareable=gpu.shareable_bytes,
            healthy=gpu.healthy,
            message=gpu.health_message,
        )
        for gpu in reply.gpus
    )
    environments = tuple(
        EnvironmentStatus(
            name=environment.name,
            backend=environment.backend,
            python=environment.python,
            packages=", ".join(f"{name} {version}" for name, version in sorted(environment.packages.items())),
        )
        for environment in reply.environments
    )
    suspended = {
        lease.claim_uid: Suspended(
            {place.gpu: place.leased_bytes for place in lease.places} if lease.suspended else {}, lease.problem
        )
        for lease in reply.leases
        if lease.claim_uid and (lease.suspended or lease.problem)
    }
    sizes = {
        lease.claim_uid: {place.gpu: place.leased_bytes for place in lease.places}
        for lease in reply.leases
        if lease.claim_uid and not lease.suspended
    }
    in_use = frozenset(lease.claim_uid for lease in reply.leases if lease.claim_uid and lease.sessions)
    sessions = {lease.claim_uid: lease.sessions for lease in reply.leases if lease.claim_uid}
    return Report(
        gpus,
        environments,
        reply.draining,
        reply.opens_no_session,
        suspended,
        sizes,
        in_use,
        sessions,
        reply.driver_version,
        None if reply.claims_unknown else {each.lease_id: each.why for each in reply.unserved},
    )
