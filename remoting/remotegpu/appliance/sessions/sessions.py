"""Opens and ends sessions, and answers the requests of their workers."""

import asyncio
import functools
import logging
import math
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from io import FileIO
from operator import itemgetter
from typing import Any, Final

from remotegpu.api.lines import one_line
from remotegpu.appliance._generated import worker_orders as orders
from remotegpu.appliance._generated import worker_requests as requests
from remotegpu.appliance.gateway import Gateway
from remotegpu.appliance.handover import NoHandoverError, State
from remotegpu.appliance.machine.cgroups import LeaseGroups
from remotegpu.appliance.machine.exits import exit_text
from remotegpu.appliance.machine.shortage import OF_SESSION, descriptors_of_tenant
from remotegpu.appliance.machine.uids import NoUidsError, Uids
from remotegpu.appliance.metrics import Counters
from remotegpu.appliance.packets import Packet
from remotegpu.appliance.sessions.budgets import HostMemory, tenant_of
from remotegpu.appliance.sessions.clients import Client
from remotegpu.appliance.sessions.code_cache import CodeCache
from remotegpu.appliance.sessions.processes import Launch, ProcessError
from remotegpu.appliance.sessions.returns import (
    Got,
    Returns,
    all_settled,
    changed,
    free_for,
    gives_way_in,
    hand_on,
    is_going,
    is_lost,
    let_go,
    note_change,
    settled,
)
from remotegpu.appliance.sessions.state import Answer, Lease, Session, SessionProcess
from remotegpu.appliance.sessions.workers import Worker
from remotegpu.appliance.settings import Limits

_log = logging.getLogger(__name__)

CUDA_ERROR_DEVICE_UNAVAILABLE: Final = 46

# A worker without a client after this time is ended. The ticket is valid for 10 s.
_CONNECT_SECONDS: Final = 12.0
_OWN_END_SECONDS: Final = 0.5
# The longest wait for a session that ends by itself.
_END_SECONDS: Final = 4.0
# The time limit in seconds for work on the GPU to complete before a session is suspended or moved.
DRAIN_SECONDS: Final = 60
# A worker that copies more slowly is treated as hanging.
_SLOWEST_BYTES_PER_SECOND: Final = 32 << 20
_ANSWER_SECONDS: Final = 60.0
_STATS: Final = ("commands", "launches", "bytes_in", "bytes_out")
_MAX_LOG_LINE: Final = 500
# Limits for the whole life of a session, since a tenant must not fill the log.
_MOST_LINES: Final = 200
_MOST_COMPLAINTS: Final = 8
_MOST_ARRIVALS: Final = 16
# The limit of open questions of one worker. A correct worker has at most 1,024 of each of two kinds.
_MOST_QUESTIONS: Final = 2048
# Ended sessions that are kept for CloseSession, which clients call soon after the end.
_MAX_ENDED: Final = 256


AboutMemory = requests.Grant | requests.Leaving | requests.Return | requests.Memory | requests.Unhealthy
AboutExports = requests.Export | requests.Import | requests.Release | requests.Freed | requests.HandOn


class SessionRefusedError(Exception):
    """Raised if a session cannot be opened. The message has the cause and the remedy."""


class Sessions:
    """All sessions of the appliance."""

    def __init__(
        self,
        *,
        gateway: Gateway,
        workers: Launch,
        groups: LeaseGroups,
        limits: Limits,
        host_memory: HostMemory,
        code: CodeCache,
        grace_seconds: int,
        uids: Uids,
        counters: Counters,
        on_unhealthy: Callable[[int, str], None],
        unhealthy: Callable[[int], str],
    ) -> None:
        """Starts without sessions. A worker lives `grace_seconds` without a connection.

        `unhealthy` returns the reason why a GPU accepts no session; empty if it does.
        """
        # Set by the owner of the leases.
        self.leases: Callable[[], Iterable[Lease]] = tuple
        self._gateway = gateway
        self._workers = workers
        self._groups = groups
        self._host_memory = host_memory
        self._code = code
        self._limits = limits
        self._grace_seconds = grace_seconds
        self._uids = uids
        self._counters = counters
        self._on_unhealthy = on_unhealthy
        self._unhealthy = unhealthy
        # The limit of the appliance's descriptors for one tenant.
        self._most_descriptors = descriptors_of_tenant()
        self._live: dict[str, Session] = {}
        self._ended: dict[str, Session] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._returns = Returns(self._give_way)
        self.none_left = asyncio.Event()
        self.none_left.set()

    def all(self) -> list[Session]:
        return list(self._live.values())

    def find(self, session_id: str, *, ended: bool = False) -> Session | None:
        """Returns a live session or, with `ended`, also one of the last ended ones; None if unknown."""
        return self._live.get(session_id) or (self._ended.get(session_id) if ended else None)

    async def open(
        self,
        lease: Lease,
        client_pid: int,
        process_name: str,
        pod: str = "",
        launch: Launch | None = None,
        *,
        acceptor: bool = False,
        session_id: str = "",
        client: Client | None = None,
    ) -> tuple[Session, str]:
        """Starts a worker, or the process of `launch`. Returns the session and the ticket for its data connection.

        With `acceptor` the caller is an acceptor of this machine: its connection never breaks, so it gets no grace.
        `session_id` is the id of a session that moves here. Raises SessionRefusedError.
        """
        while refused := self._refused_by_limits(lease):
            if not await self._make_room(lease, client):
                raise refused
        if lease.ended:
            raise SessionRefusedError("the lease has ended: start the program again under `remotegpu run`")
        if not (lease.running.is_set() or lease.arriving):
            # The suspension began while this call waited, and other leases may already have the share.
            raise SessionRefusedError("the share is being suspended or moved: start the program again")
        if session_id in self._live:
            raise SessionRefusedError("a session of this name is there already")
        try:
            uid = self._uids.take()
        except NoUidsError as error:
            raise SessionRefusedError(str(error)) from None
        session = Session(session_id or secrets.token_hex(16), lease, client_pid, process_name, uid, pod)
        session.client = client
        # Registered before the worker starts, so that concurrent calls count this session.
        self._live[session.session_id] = lease.sessions[session.session_id] = session
        self.none_left.clear()
        gateway_end = None
        try:
            start = launch or self._workers
            process, gateway_end = await start(session, lambda p, file: self._receive(session, p, file))
            session.process = process
            if launch is None:
                self._groups.join(lease.lease_id, self._host_memory.of_lease(lease), process.pid)
            self._spawn(self._watch(session, process))
            await process.wait_until_ready()
            if session.ended:
                raise ProcessError(f"the lease ended while the {process.kind} started")
            ticket = secrets.token_hex(32)
            session.grace_seconds = 0 if launch or acceptor else self._grace_seconds
            if isinstance(process, Worker) and process.turns is not None:
                self._gateway.admit_turns(session.session_id, lease.lease_id, process.turns)
                process.turns = None
            self._gateway.admit_session(session.session_id, ticket, gateway_end, resumes=session.grace_seconds > 0)
        except BaseException as error:
            # Also if the caller has cancelled the call.
            if gateway_end is not None:
                gateway_end.close()
            abandoned = self._spawn(self._abandon(session))
            if not isinstance(error, (ProcessError, OSError)):
                raise
            await asyncio.shield(abandoned)
            why = str(error) if isinstance(error, ProcessError) else f"the appliance starts no process: {error}"
            raise SessionRefusedError(why) from None
        self._counters.sessions.inc()
        self._follow_client(session)
        asyncio.get_running_loop().call_later(_CONNECT_SECONDS, self._expire, session)
        return session, ticket

    async def end(self, session: Session, code: int, reason: str) -> None:
        """Ends a session with a CUDA error code. Returns when its process has ended and its memory is free."""
        session.ended = True
        # Without a process the session is being opened: `open` sees `ended` and cleans up.
        if session.process is not None:
            await session.process.end(code, reason)
            self._forget(session, await session.process.wait())

    def end_on(self, gpu: int, code: int, reason: str) -> None:
        """Starts to end all sessions on this GPU."""
        for session in self.all():
            if gpu in session.lease.placement.gpus and not session.ended:
                self._spawn(self.end(session, code, reason))

    async def close(self, session: Session) -> int:
        """Ends a session if it is alive. Returns the exit code of its process, or the negative signal number."""
        if session.process is None:
            await self.end(session, 0, "closed by its client")
            return 0
        try:
            # Waits first, since the process often ends by itself, and then its own exit code is the result.
            async with asyncio.timeout(_OWN_END_SECONDS):
                return await session.process.wait()
        except TimeoutError:
            await self.end(session, 0, "closed by its client")
            return await session.process.wait()

    async def ask(
        self, session: Session, packet: Packet, fds: Sequence[int] = (), *, size: int, seconds: float = 0.0
    ) -> Answer | None:
        """Asks a worker to suspend, resume or move its session; returns its answer, None if it ends.

        A worker that does not answer in time is ended. The time limit is `seconds` plus the time to copy `size` bytes.
        """
        if session.process is None or session.session_id not in self._live:
            return None
        answer = self.expect(session)
        session.process.send(packet, fds)
        most = _ANSWER_SECONDS + seconds + size / _SLOWEST_BYTES_PER_SECOND
        try:
            async with asyncio.timeout(most):
                return await answer
        except TimeoutError:
            why = f"its worker did not {packet['op']} it within {most:.0f} s"
            await self.end(session, CUDA_ERROR_DEVICE_UNAVAILABLE, why)
            return None

    def expect(self, session: Session) -> asyncio.Future[Answer | None]:
        """Returns a future for the worker's next answer about its session, None if it ends."""
        session.answer = asyncio.get_running_loop().create_future()
        return session.answer

    def leave(self, session: Session) -> None:
        """Ends a session that has moved away, without an error for its client."""
        session.ended = True
        if session.process is not None:
            session.process.send(orders.leave())

    def handed(self) -> list[State]:
        """Returns the state for `adopt`. Raises NoHandoverError if there is state that cannot be handed over."""
        return [_handed(session) for session in self._live.values()]

    def adopt(self, sessions: list[State]) -> None:
        """Takes over the sessions from a state that `handed` returned, with their workers."""
        leases = {lease.lease_id: lease for lease in self.leases()}
        for each in sessions:
            lease = leases[each["lease_id"]]
            session = Session(
                each["session_id"], lease, each["client_pid"], each["process_name"], each["uid"], each["pod"]
            )
            session.since, session.lost_since, session.stats = each["since"], each["lost_since"], each["stats"]
            session.grace_seconds, session.on_gpu = each["grace_seconds"], each["on_gpu"]
            # The state of an earlier version has no clients.
            session.client = Client.of(session.client_pid, each.get("client", ""))
            self._live[session.session_id] = lease.sessions[session.session_id] = session
            self.none_left.clear()
            process = Worker.adopted(each["process"], functools.partial(self._receive, session))
            session.process = process
            self._follow_client(session)
            self._groups.adopt(lease.lease_id)
            self._spawn(self._watch(session, process))
            if each["connected"]:
                session.connected.set()
            else:
                asyncio.get_running_loop().call_later(_CONNECT_SECONDS, self._expire, session)

    async def end_group(self, lease: Lease) -> None:
        """Removes the cgroup of an ended lease, which has no session left."""
        await self._groups.leave(lease.lease_id)

    async def finish_ends(self) -> None:
        """Waits until no session is being opened or is ending, and every request for memory is answered."""
        while (
            between := [session for session in self.all() if is_going(session) or session.process is None]
        ) or self._returns.waiting:
            await asyncio.gather(*(self.end(session, 0, "it has ended") for session in between if is_going(session)))
            await asyncio.sleep(0.01)

    def connected(self, session_id: str) -> None:
        if session := self._live.get(session_id):
            session.connected.set()

    async def settled(self) -> None:
        """Waits until no background task runs."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _refused_by_limits(self, lease: Lease) -> SessionRefusedError | None:
        try:
            self._check_limits(lease)
        except SessionRefusedError as error:
            return error
        return None

    def _follow_client(self, session: Session) -> None:
        """Watches the client's process. When it ends or calls exec, its session ends soon."""

        # The session may have ended already.
        if session.client is not None and self._live.get(session.session_id) is session:
            for other in session.lease.sessions.values():
                if other is not session and session.client.is_same(other.client):
                    _note_end(other)
            self._spawn(session.client.watch(functools.partial(_note_end, session, seen=True)))

    def client_has_ended(self, session: Session) -> None:
        """Handles a report of another client of the lease that this session's client has ended."""
        if session.client is not None and self._live.get(session.session_id) is session:
            session.client.ended = True
            _note_end(session)

    async def _make_room(self, lease: Lease, client: Client | None) -> bool:
        """Waits for a session of the lease that is ending, or ends the lost session that may be ended first.

        Returns False if there is neither. After True the caller must check the limits again: a client may have
        reconnected in time.
        """
        lost = [(gives_way_in(each, client), each) for each in filter(is_lost, lease.sessions.values())]
        left, first = min(lost, key=itemgetter(0), default=(_END_SECONDS, None))
        if going := list(filter(is_going, lease.sessions.values())):
            for session in going:
                let_go(session)
            await changed(lease, left)
        elif first is None:
            return False
        elif left > 0:
            await changed(lease, left)
        else:
            await self._end_lost(first)
        return True

    async def _end_lost(self, lost: Session) -> None:
        """Ends a session without a connection, in favour of another session."""
        _log.info("session %s gives way to another one of its lease: it has no connection", lost.session_id[:8])
        why = "another process of the lease needed its place while it had no connection"
        await self.end(lost, CUDA_ERROR_DEVICE_UNAVAILABLE, why)

    async def _give_way(self, lost: Session) -> None:
        """Ends a session without a connection, in favour of a session that needs its memory."""
        if lost.process is not None:
            lost.process.send(orders.give_way())
        await self._end_lost(lost)

    async def settle(self, lease: Lease) -> None:
        """Makes the workers of a lease report memory that programs have freed."""
        await self._returns.settle(lease)

    def _check_limits(self, lease: Lease) -> None:
        if len(lease.sessions) >= self._limits.sessions_per_lease:
            raise SessionRefusedError(
                f"the lease has its limit of {self._limits.sessions_per_lease} sessions (--sessions-per-lease): "
                "end some of the processes that use CUDA"
            )
        self._check_tenant(tenant_of(lease))
        for gpu, part in zip(lease.placement.gpus, lease.parts, strict=True):
            if why := self._unhealthy(gpu):
                raise SessionRefusedError(f"gpu {gpu} opens no session: {why}; take another GPU, or try later")
            most = self._limits.sessions_per_gpu
            if _on_gpus(lease) >= part:
                raise SessionRefusedError(
                    f"gpu {gpu}: the lease has its part of {part} sessions of the {most} there (--sessions-per-gpu): "
                    "end some of the processes that use CUDA, or take a larger share"
                )
            running = sum(one.on_gpu and gpu in one.lease.placement.gpus for one in self._live.values())
            # Each lease has a reserved place for its first session.
            others = [other for other in self.leases() if other != lease]
            kept = sum(gpu in other.placement.gpus and not _on_gpus(other) for other in others)
            if running + (kept if _on_gpus(lease) else 0) >= most:
                raise SessionRefusedError(
                    f"gpu {gpu} has its limit of {most} sessions (--sessions-per-gpu), of which {kept} are kept for "
                    "leases that have none yet; try later"
                )

    def _check_tenant(self, tenant: str) -> None:
        if self._descriptors_of(tenant) + OF_SESSION > self._descriptors_for(tenant):
            raise SessionRefusedError(
                f"{tenant} has half of the appliance's descriptors: end some of the processes that use "
                "CUDA, or have the appliance started with more (LimitNOFILE= of its unit, ulimit -n)"
            )
        most = self._limits.sessions_per_tenant
        if most is None or not tenant:
            return
        if sum(tenant_of(session.lease) == tenant for session in self._live.values()) >= most:
            raise SessionRefusedError(
                f"{tenant} has its limit of {most} sessions on this appliance (--sessions-per-tenant): end some of the "
                "processes that use CUDA"
            )

    def _has_all_descriptors(self, tenant: str) -> bool:
        return self._descriptors_of(tenant) >= self._descriptors_for(tenant)

    def _descriptors_for(self, tenant: str) -> float:
        """Returns the number of the appliance's descriptors that a tenant may use; infinity without tenants."""
        return self._most_descriptors if tenant else math.inf

    def _descriptors_of(self, tenant: str) -> int:
        """Returns the number of the appliance's descriptors that a tenant's sessions and exports use."""
        leases = [lease for lease in self.leases() if tenant_of(lease) == tenant]
        return sum(OF_SESSION * len(lease.sessions) + len(lease.exports) for lease in leases)

    def _receive(self, session: Session, packet: Packet, file: FileIO | None) -> None:
        """Answers a packet of a worker, which may be under its tenant's control: nothing in it is trusted."""
        match request := requests.read(packet):
            case requests.Log(line):
                _note(session, line)
            case requests.Stats():
                self._count(session, request)
            case request if isinstance(request, Answer):
                if session.answer is not None and not session.answer.done():
                    session.answer.set_result(request)
            case requests.Connection(connected, closed):
                session.lost_since = None if connected else time.monotonic()
                session.hung_up = closed
                note_change(session.lease)
            case requests.Settled(number):
                settled(session, number)
            case requests.Left(size):
                self._counters.left_bytes.inc(size)
            case _ if request is not None and session.process is not None:
                self._answer(session, session.process, request, file)

    def _answer(
        self, session: Session, process: SessionProcess, request: requests.Request, file: FileIO | None
    ) -> None:
        """Answers a request about the end of a session, its memory, its exports or its code."""
        match request:
            case requests.Ending(offers) if not session.leaving:
                session.leaving, session.offers = True, offers
                all_settled(session)
                note_change(session.lease)
                # A worker that announces its end and does not end is killed.
                self._spawn(_see_off(process, "" if session.offers else "it ends"))
            case request if isinstance(request, AboutMemory):
                if request.device < len(session.lease.quotas):
                    self._account(session, process, request)
            case requests.Export() if self._has_all_descriptors(tenant_of(session.lease)):
                # The worker learns that there is no room.
                if file is not None:
                    file.close()
                _share(session, process, request, None)
            case request if isinstance(request, AboutExports):
                _share(session, process, request, file)
            case requests.Code(number, name):
                image = self._code.find(tenant_of(session.lease), name)
                self._counters.code_asked.labels("miss" if image is None else "hit").inc()
                process.send(orders.code(id=number), [] if image is None else [image.fileno()])
            case requests.Offer(name, size) if file is not None and session.arriving < _MOST_ARRIVALS:
                self._spawn(self._arrive(session, self._code.offer(tenant_of(session.lease), name, size, file)))
            case requests.Offer() if file is not None:
                # The worker gets EPIPE, and learns that the image is not kept.
                file.close()

    async def _arrive(self, session: Session, offer: Coroutine[Any, Any, None]) -> None:
        session.arriving += 1
        try:
            await offer
        finally:
            session.arriving -= 1

    def _account(self, session: Session, process: SessionProcess, request: AboutMemory) -> None:
        device = request.device
        quota = session.lease.quotas[device]
        match request:
            case requests.Grant():
                self._grant(session, process, request)
            case requests.Leaving(_, size, offers):
                quota.leave(session.session_id, size)
                if offers:
                    session.offers_on.add(device)
                note_change(session.lease)
            case requests.Return(_, size):
                quota.give_back(session.session_id, size)
                session.offers_on.discard(device)
                note_change(session.lease)
            case requests.Memory(number):
                self._ask(session, self._tell_memory(session, process, device, number))
            case requests.Unhealthy(_, code, message):
                if session.complaints < _MOST_COMPLAINTS:
                    session.complaints += 1
                    gpu = session.lease.placement.gpus[device]
                    self._on_unhealthy(gpu, f"error {code}: {one_line(message, _MAX_LOG_LINE)}")

    def _ask(self, session: Session, answer: Coroutine[Any, Any, None]) -> None:
        """Answers in a background task. Ends a session with too many open questions: its worker must be hostile."""
        if session.questions >= _MOST_QUESTIONS:
            answer.close()
            if not session.ended:
                reason = f"its process asked {_MOST_QUESTIONS} questions at once"
                self._spawn(self.end(session, CUDA_ERROR_DEVICE_UNAVAILABLE, reason))
            return
        session.questions += 1
        self._spawn(self._answered(session, answer))

    @staticmethod
    async def _answered(session: Session, answer: Coroutine[Any, Any, None]) -> None:
        try:
            await answer
        finally:
            session.questions -= 1

    async def _tell_memory(self, session: Session, process: SessionProcess, device: int, number: int) -> None:
        await self._returns.settle(session.lease, besides=session)
        limit, free = session.lease.quotas[device].limit, free_for(session, device)
        process.send(orders.memory(id=number, limit=limit, free=free))

    def _grant(self, session: Session, process: SessionProcess, grant: requests.Grant) -> None:
        quota = session.lease.quotas[grant.device]
        # A session that is ending has given up its memory already.
        size = 0 if session.ended else quota.grant(session.session_id, grant.least, grant.want)
        if not size and not session.ended and 0 < grant.least <= quota.limit:
            self._ask(session, self._grant_later(session, process, grant))
        else:
            self._answer_grant(session, process, grant, Got(size, 0, ""))

    async def _grant_later(self, session: Session, process: SessionProcess, grant: requests.Grant) -> None:
        got = await self._returns.grant(session, grant.device, grant.least, grant.want, maps=grant.maps)
        self._answer_grant(session, process, grant, got)

    def _answer_grant(self, session: Session, process: SessionProcess, grant: requests.Grant, got: Got) -> None:
        gpu = str(session.lease.placement.gpus[grant.device])
        # A request for nothing: the worker only wants to know that all its packets were read.
        if grant.least:
            (self._counters.grants if got.size else self._counters.grants_refused).labels(gpu=gpu).inc()
        process.send(orders.granted(id=grant.id, size=got.size, line=got.line, inherited=got.inherited))

    def _count(self, session: Session, stats: requests.Stats) -> None:
        for name in _STATS:
            value, before = getattr(stats, name), session.stats.get(name, 0)
            self._counters.stats[name].inc(max(0, value - before))
            session.stats[name] = max(value, before)

    async def _watch(self, session: Session, process: SessionProcess) -> None:
        code = await process.wait()
        if code == 0 or session.ended:
            _log.debug("session %s of pid %d ended", session.session_id[:8], session.client_pid)
        else:
            who = f"{process.kind} {process.pid}"
            _log.error("session %s: its %s died (%s)", session.session_id[:8], who, exit_text(code))
        result = "ended" if session.ended else "clean" if code == 0 else "signal" if code < 0 else "error"
        self._counters.worker_exits.labels(result=result).inc()
        self._forget(session, code)

    async def _abandon(self, session: Session) -> None:
        session.ended = True
        if session.process is not None:
            await session.process.kill()
        self._forget(session, 0)

    def _expire(self, session: Session) -> None:
        if not session.connected.is_set() and session.session_id in self._live:
            _log.info("session %s: its client never connected", session.session_id[:8])
            self._spawn(self.end(session, CUDA_ERROR_DEVICE_UNAVAILABLE, "the client did not connect in time"))

    def _forget(self, session: Session, code: int) -> None:
        """Cleans up after a process has ended and the driver has freed its memory. Frees uid and quota."""
        # A later session with the same id may have moved back here.
        if self._live.get(session.session_id) is not session:
            return
        del self._live[session.session_id]
        if code < 0:
            # A killed process has not overwritten its memory.
            self._counters.left_bytes.inc(session.granted_bytes)
        session.connected.set()
        session.lease.sessions.pop(session.session_id, None)
        self._ended[session.session_id] = session
        if len(self._ended) > _MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        for quota in session.lease.quotas:
            quota.forget(session.session_id)
        session.lease.exports.forget(session.session_id)
        if session.client is not None:
            session.client.close()
        all_settled(session)
        note_change(session.lease)
        if session.answer is not None and not session.answer.done():
            session.answer.set_result(None)
        if session.image is not None:
            session.image.close()
        self._uids.give_back(session.uid)
        if session.process is not None:
            session.process.close()
        self._gateway.forget(session.session_id)
        if not self._live:
            self.none_left.set()

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _note_end(session: Session, *, seen: bool = False) -> None:
    """Tells a worker that its client's process has ended or called exec, so that the session ends soon.

    With `seen` the kernel reported the end. The session then counts as lost at once, even if its worker is slow.
    """
    if session.process is not None and not is_going(session):
        if seen:
            session.lost_since = session.lost_since or time.monotonic()
        session.process.send(orders.client_ended())
    note_change(session.lease)


def _note(session: Session, line: str) -> None:
    """Logs a session's line, up to a limit: the process has its own, but may be under its tenant's control."""
    if session.lines < _MOST_LINES:
        _log.info("session %s: %s", session.session_id[:8], one_line(line, _MAX_LOG_LINE))
    elif session.lines == _MOST_LINES:
        _log.info("session %s: says more than %d lines, of which no more are kept", session.session_id[:8], _MOST_LINES)
    session.lines = min(session.lines, _MOST_LINES) + 1


async def _see_off(process: SessionProcess, reason: str) -> None:
    """Waits for a process that ends by itself, and kills it if it does not. With a `reason`, ends it at once."""
    if reason:
        return await process.end(0, reason)
    try:
        async with asyncio.timeout(_END_SECONDS):
            await process.wait()
    except TimeoutError:
        await process.kill()


def _handed(session: Session) -> State:
    process = session.process
    if not isinstance(process, Worker) or is_going(session) or session.image is not None:
        raise NoHandoverError(f"session {session.session_id[:8]} is beginning, ending, suspended or no worker's")
    return {
        "session_id": session.session_id,
        "lease_id": session.lease.lease_id,
        "client_pid": session.client_pid,
        "process_name": session.process_name,
        "uid": session.uid,
        "pod": session.pod,
        "since": session.since,
        "lost_since": session.lost_since,
        "stats": session.stats,
        "grace_seconds": session.grace_seconds,
        "on_gpu": session.on_gpu,
        "connected": session.connected.is_set(),
        "client": session.client.name if session.client is not None else "",
        "process": process.handed(),
    }


def _share(session: Session, process: SessionProcess, request: AboutExports, file: FileIO | None) -> None:
    """Answers a worker's packet about memory that it shares with others of its lease."""
    exports, name = session.lease.exports, session.session_id
    match request:
        case requests.Export(number, device, size):
            token = None
            if file is not None and device < len(session.lease.quotas) and not session.ended:
                token = exports.add(name, device, size, file)
            process.send(orders.exported(id=number, token=token))
        case requests.Import(number, token):
            export = None if session.ended else exports.hold(name, token)
            if export is None:
                process.send(orders.imported(id=number, device=0, size=0))
            else:
                answer = orders.imported(id=number, device=export.device, size=export.size)
                process.send(answer, [export.file.fileno()])
        case requests.Release(token):
            process.send(orders.released(token=token, last=exports.release(name, token)))
            note_change(session.lease)
        case requests.HandOn(device, size, zeroed):
            hand_on(session, device, size, file, zeroed=zeroed)
        case requests.Freed(token):
            exports.freed(name, token)
            note_change(session.lease)


def _on_gpus(lease: Lease) -> int:
    """Returns the number of a lease's sessions that use GPUs. An acceptor does not count, but its worker does."""
    return sum(session.on_gpu for session in lease.sessions.values())
