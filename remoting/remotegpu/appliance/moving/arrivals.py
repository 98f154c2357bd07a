"""Receives leases that move to this appliance from another one.

The workers of the other appliance connect like clients and rebuild their sessions in workers of this appliance. The
clients of the programs reconnect here when the lease is settled.
"""

import asyncio
import logging
import re
import secrets
from dataclasses import dataclass, field, replace
from typing import Final

import grpc

from remotegpu.api.lines import one_line
from remotegpu.api.quantities import Ask
from remotegpu.appliance._generated.worker_requests import Adopted
from remotegpu.appliance.claims.leases import ClaimLeases
from remotegpu.appliance.gateway import Gateway
from remotegpu.appliance.gpus.hardware import Snapshot
from remotegpu.appliance.leases.leases import Leases
from remotegpu.appliance.refusal import RefusalError, refused
from remotegpu.appliance.sessions.sessions import SessionRefusedError, Sessions
from remotegpu.appliance.sessions.state import Answer, Lease, Session
from remotegpu.appliance.shares.asks import ask_of, compute_of
from remotegpu.appliance.shares.claims import Claim
from remotegpu.rpc import pb

_log = logging.getLogger(__name__)

_INVITATION_SECONDS: Final = 60.0
_MOST_INVITATIONS: Final = 64
_MOST_OF_ONE: Final = 16
_MOST_NAME: Final = 200
# The time limit from the end of sending.
_ADOPT_SECONDS: Final = 30.0
# Device attributes for the position of a GPU on the PCI bus, which may differ.
_PLACE_ATTRIBUTES: Final = (33, 34, 50)
_HEX: Final = frozenset("0123456789abcdef")
# The form of a pod's UID in Kubernetes; empty outside of a cluster.
_POD: Final = re.compile(r"[A-Za-z0-9-]{0,64}")
_UUID_BYTES: Final = 16
# 8 bits of a bus and 5 of a device (PCI Local Bus Specification 3.0, 3.2.2.3.2).
_MOST_BUS: Final = 255
_MOST_SLOT: Final = 31


@dataclass(slots=True, eq=False)
class Arrival:
    """An invitation, and the state of the lease that moves here with it."""

    owner: str
    # The id of the claim's lease in Kubernetes, else empty.
    lease_id: str = ""
    # Whether a lease moves with the invitation, or has tried to.
    used: bool = False
    lease: Lease | None = None
    # With the ticket of its client, and the future for its worker's report.
    sessions: list[tuple[Session, str, asyncio.Future[Answer | None]]] = field(default_factory=list)
    # Set once there is a worker for each session.
    watch: asyncio.Task[None] | None = None


class Arrivals:
    def __init__(self, leases: Leases, sessions: Sessions, gateway: Gateway, snapshot: Snapshot) -> None:
        # Set in Kubernetes, where all leases are those of claims.
        self.claims: ClaimLeases | None = None
        self._leases = leases
        self._sessions = sessions
        self._gateway = gateway
        self._snapshot = snapshot
        self._invited: dict[str, Arrival] = {}

    @property
    def expected(self) -> bool:
        return bool(self._invited)

    def invite(self, owner: str, lease_id: str) -> str:
        """Returns an invitation for one lease, which will belong to `owner`. Raises RefusalError.

        In Kubernetes the invitation is only for the lease `lease_id` of a claim.
        """
        of_one = sum(arrival.owner == owner for arrival in self._invited.values())
        if len(self._invited) >= _MOST_INVITATIONS or (of_one >= _MOST_OF_ONE and not lease_id):
            message = (
                f"{len(self._invited)} leases are about to move here, {of_one} of them yours: try again in a minute"
            )
            raise RefusalError(grpc.StatusCode.RESOURCE_EXHAUSTED, message)
        invitation = secrets.token_hex(32)
        self._invited[invitation] = Arrival(owner, lease_id)
        asyncio.get_running_loop().call_later(_INVITATION_SECONDS, self._expire, invitation)
        return invitation

    async def invited(self, invitation: str) -> Arrival:
        """Returns the arrival of an invitation. Raises RefusalError if there is no such invitation."""
        if arrival := self._invited.get(invitation):
            return arrival
        message = "the invitation is unknown or older than a minute: move the lease again"
        raise RefusalError(grpc.StatusCode.PERMISSION_DENIED, message)

    def _expire(self, invitation: str) -> None:
        if (arrival := self._invited.get(invitation)) and not arrival.used:
            del self._invited[invitation]

    def _drop(self, arrival: Arrival) -> None:
        """Invalidates the invitation."""
        self._invited = {name: each for name, each in self._invited.items() if each is not arrival}

    def _give_up(self, arrival: Arrival, why: str) -> None:
        """Cancels an arrival: invalidates its invitation and ends its lease."""
        self._drop(arrival)
        if arrival.watch is not None:
            arrival.watch.cancel()
        if arrival.lease is not None:
            self._end(arrival.lease, why)

    def _end(self, lease: Lease, why: str) -> None:
        """Ends the lease, unless it was replaced by a later lease with the same id."""
        if self._leases.by_id(lease.lease_id) is lease:
            self._leases.end(lease.lease_id, why)

    async def receive(self, arrival: Arrival, request: pb.ReceiveLeaseRequest) -> list[str]:
        """Takes a share and starts workers. Returns a ticket for the data of each session.

        Raises RefusalError, and then frees everything.
        """
        _check(request)
        if arrival.used:
            raise refused("the invitation was used before: move the lease again")
        arrival.used = True
        tickets: list[str] = []
        try:
            # The same lease may have just left this appliance.
            await self._leases.finish_end(request.lease_id)
            lease = arrival.lease = self._take_share(arrival, request)
            for moving in request.sessions:
                name = one_line(moving.process_name, _MOST_NAME)
                session, ticket = await self._sessions.open(
                    lease, moving.pid, name, moving.pod, session_id=moving.session_id
                )
                arrival.sessions.append((session, moving.ticket, self._sessions.expect(session)))
                tickets.append(ticket)
        except BaseException as error:
            # Also if the caller has cancelled the call.
            self._give_up(arrival, "it does not move here")
            if isinstance(error, SessionRefusedError):
                raise RefusalError(grpc.StatusCode.RESOURCE_EXHAUSTED, f"NoRoom: {error}") from None
            raise
        arrival.watch = asyncio.create_task(self._watch(arrival, lease))
        _log.info("lease %s (%s) moves here", lease.lease_id[:8], lease.client)
        return tickets

    def _take_share(self, arrival: Arrival, request: pb.ReceiveLeaseRequest) -> Lease:
        if not self._leases.grace_seconds:
            raise refused("NoGrace: the appliance there keeps no session without a connection (--grace 0s)")
        if any(self._sessions.find(each.session_id) for each in request.sessions):
            raise refused("a session of it is there already")
        ours, theirs = self._snapshot.driver_version, request.driver_version
        if ours != theirs:
            raise refused(f"OtherDriver: CUDA {theirs} is provided here and {ours} there")
        claim = self._claim_of(arrival, request)
        wanted = _ask_of(request) if claim is None or self.claims is None else self.claims.placement(claim)
        client = one_line(request.client, _MOST_NAME)
        lease = self._leases.receive(request.lease_id, request.lease_secret, client, arrival.owner, wanted, claim)
        for device, was in zip(lease.devices, request.devices, strict=True):
            if why := _difference(was, device):
                self._end(lease, "it does not move here")
                raise refused(why)
            # The programs identify the device by these values.
            device.uuid, device.pci_domain, device.pci_bus, device.pci_device = (
                was.uuid,
                was.pci_domain,
                was.pci_bus,
                was.pci_device,
            )
            for attribute in _PLACE_ATTRIBUTES:
                device.attributes[attribute] = was.attributes[attribute]
        return lease

    def _claim_of(self, arrival: Arrival, request: pb.ReceiveLeaseRequest) -> Claim | None:
        """Returns the claim that moves here; None outside of Kubernetes."""
        if self.claims is None:
            return None
        claim = self.claims.claim(request.lease_id)
        if claim is None or not claim.arrives or request.lease_id != arrival.lease_id:
            raise refused("NotExpected: no claim of this name is to move there")
        if [size for _, size in claim.places] != [device.memory_bytes for device in request.devices]:
            raise refused("OtherSizes: its shares of GPUs here are not what the claim has there")
        return claim

    async def settle(self, arrival: Arrival, *, keep: bool) -> None:
        """Ends the move: opens the lease here if `keep`, else removes it.

        Raises RefusalError if the lease should be kept but has not arrived completely, and then frees everything.
        """
        if arrival.used and arrival.watch is None:
            raise refused("NotArrived: its sessions are still being made here")
        self._drop(arrival)
        lease = arrival.lease
        if lease is None:
            return
        try:
            why = await self._incomplete(arrival) if keep else "it stays where it was"
        except BaseException:
            # The caller has cancelled the call, and so keeps the lease at its side.
            self._give_up(arrival, "it stays where it was")
            raise
        if not why and self._leases.by_id(lease.lease_id) is not lease:
            why = "the lease has ended"
        if not why and any(self._sessions.find(each.session_id) is not each for each, _, _ in arrival.sessions):
            why = "a session of it has ended"
        if not why and self.claims is not None and self.claims.claim(lease.lease_id) is None:
            why = "its claim is not to move there any more"
        if why:
            self._give_up(arrival, why)
            if keep:
                raise refused(f"NotArrived: {why}")
            return
        if arrival.watch is not None:
            arrival.watch.cancel()
        for session, ticket, _ in arrival.sessions:
            self._gateway.replace_ticket(session.session_id, ticket)
        self._leases.settled(lease)
        _log.info("lease %s (%s) has moved here", lease.lease_id[:8], lease.client)

    async def _incomplete(self, arrival: Arrival) -> str:
        """Waits for all sessions. Returns an error if a session has not arrived completely, else ""."""
        answers = [answer for _, _, answer in arrival.sessions]
        if answers:
            await asyncio.wait(answers, timeout=_ADOPT_SECONDS)
        missing = [answer for answer in answers if not answer.done() or not isinstance(answer.result(), Adopted)]
        return f"{len(missing)} of its {len(answers)} sessions are not complete" if missing else ""

    async def _watch(self, arrival: Arrival, lease: Lease) -> None:
        """Ends the lease if it is never settled: all its workers have ended because the other appliance is gone."""
        await asyncio.sleep(_INVITATION_SECONDS)
        await asyncio.gather(*(session.process.wait() for session, _, _ in arrival.sessions if session.process))
        self._drop(arrival)
        self._end(lease, "the appliance that it moves from is gone")


def _check(request: pb.ReceiveLeaseRequest) -> None:
    """Raises RefusalError for an invalid request. The invited peer is not trusted."""
    names = [(request.lease_id, 32), (request.lease_secret, 64)]
    names += [pair for each in request.sessions for pair in ((each.session_id, 32), (each.ticket, 64))]
    session_ids = {each.session_id for each in request.sessions}
    wrong = (
        (
            not all(len(name) == length and _HEX.issuperset(name) for name, length in names),
            "a lease, a session or a ticket has no right name",
        ),
        (len(session_ids) < len(request.sessions), "two sessions have one name"),
        (not all(_POD.fullmatch(each.pod) for each in request.sessions), "a session's pod has no right name"),
        (not all(map(_is_device, request.devices)), "a device has no right UUID or place on the PCI bus"),
    )
    for is_wrong, why in wrong:
        if is_wrong:
            raise RefusalError(grpc.StatusCode.INVALID_ARGUMENT, f"{why}: is that an appliance of remotegpu?")


def _is_device(told: pb.Device) -> bool:
    return len(told.uuid) == _UUID_BYTES and told.pci_bus <= _MOST_BUS and told.pci_device <= _MOST_SLOT


def _ask_of(request: pb.ReceiveLeaseRequest) -> Ask:
    sizes = {device.memory_bytes for device in request.devices}
    if len(sizes) != 1:
        raise refused("UnequalShares: its shares of GPUs are not of one size")
    ask = ask_of(len(request.devices), 0, sizes.pop())
    return replace(ask, compute=compute_of(request.compute_milli, request.compute_limit_milli))


def _difference(was: pb.Device, device: pb.Device) -> str:
    """Returns a difference between two devices that a program would notice; empty if there is none."""
    if was.name != device.name:
        return f"OtherGpuModel: {was.name} here and {device.name} there"
    for attribute in sorted({*was.attributes, *device.attributes} - set(_PLACE_ATTRIBUTES)):
        here, there = was.attributes.get(attribute, 0), device.attributes.get(attribute, 0)
        if here != there:
            return f"OtherGpuModel: CUdevice_attribute {attribute} is {here} here and {there} there"
    return ""
