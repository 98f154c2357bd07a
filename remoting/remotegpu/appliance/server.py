"""Builds the parts of an appliance, runs them, and stops them in order."""

import asyncio
import contextlib
import itertools
import json
import logging
import os
import resource
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import grpc.aio

from remotegpu.api.lines import one_line
from remotegpu.api.modes import ComputeMode, Landlock, WorkerWrites
from remotegpu.api.quantities import format_bytes
from remotegpu.appliance._generated import gateway_events as events
from remotegpu.appliance.backends.base import Backend, BackendError
from remotegpu.appliance.backends.xids import Effect, classify
from remotegpu.appliance.checks import ClaimsState, IdentitiesState, Situation, checks
from remotegpu.appliance.claims.authority import ClaimAuthority, audiences
from remotegpu.appliance.claims.leases import ClaimLeases
from remotegpu.appliance.claims.reviews import Reviews
from remotegpu.appliance.gateway import Event, Gateway, GatewayError, Restarted
from remotegpu.appliance.gpus.hardware import Hardware, SelfTest, probe, self_test, worker_environment
from remotegpu.appliance.gpus.health import GpuHealth
from remotegpu.appliance.handover import NoHandoverError, State, check_new_code, execute, received
from remotegpu.appliance.http.dashboard import Dashboard, Source
from remotegpu.appliance.http.probes import HttpServer
from remotegpu.appliance.leases.authority import Authority, SecretAuthority, WithAcceptors
from remotegpu.appliance.leases.drain import Drain
from remotegpu.appliance.leases.leases import Leases
from remotegpu.appliance.leases.suspension import Suspensions
from remotegpu.appliance.leases.tokens import TokenFile, Tokens, UsersToken
from remotegpu.appliance.machine.cgroups import Cgroups, LeaseGroups
from remotegpu.appliance.machine.images import Images
from remotegpu.appliance.machine.room import own_room
from remotegpu.appliance.machine.shortage import Shortage
from remotegpu.appliance.machine.staging import Staging, StagingError, sweep
from remotegpu.appliance.machine.uids import NoUidsError, Uids
from remotegpu.appliance.metrics import Counters, Gauges
from remotegpu.appliance.moving.arrivals import Arrivals
from remotegpu.appliance.moving.departures import Departures
from remotegpu.appliance.moving.destinations import Destinations
from remotegpu.appliance.parts import Parts
from remotegpu.appliance.refusal import Refusals
from remotegpu.appliance.secret_files import administrators_files, move_away, open_to_others, secret_files
from remotegpu.appliance.service import PROGRAM, ControlService
from remotegpu.appliance.sessions.budgets import HostMemory
from remotegpu.appliance.sessions.code_cache import CodeCache
from remotegpu.appliance.sessions.memory_watch import MemoryWatch
from remotegpu.appliance.sessions.sessions import Sessions
from remotegpu.appliance.sessions.spares import Spares
from remotegpu.appliance.sessions.workers import Workers
from remotegpu.appliance.settings import Kubernetes, Settings, physical_bytes
from remotegpu.appliance.shares.allocation import GpuLeases
from remotegpu.extensions import Environments, NoEnvironments, required_offload
from remotegpu.paths import Dist, find_dist
from remotegpu.rpc import own_token, pb, pb_grpc
from remotegpu.rpc.own_token import OwnToken

if TYPE_CHECKING:
    from remotegpu.appliance.claims.kubernetes import ApiServer

_log = logging.getLogger(__name__)

_CALLS_GRACE_SECONDS = 1.0
# Limits of one connection; the gateway limits the number of connections. An idle client reconnects. TCP keepalive in
# the gateway finds dead peers, but does not end a connection of a stopped program.
_CALL_LIMITS = [
    ("grpc.max_concurrent_streams", 64),
    ("grpc.max_receive_message_length", 256 << 10),
    ("grpc.max_connection_idle_ms", 300_000),
]
_MOST_LINE = 500
_LONGEST_SOCKET_NAME = 107  # unix(7)


class StartError(Exception):
    """Raised if the appliance cannot start or continue. The message has the cause and the remedy."""


def run(settings: Settings) -> None:
    """Serves until a signal comes or the other end of `parent_fd` is closed. Raises StartError."""
    # The parent process may have blocked signals, as `remotegpu run` does, and workers would inherit the mask.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    # Raised to the hard limit, since sessions, connections and shared memory need descriptors.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    level = logging.ERROR if settings.quiet else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s")
    try:
        asyncio.run(_run(settings, received()))
    except (BackendError, GatewayError, NoHandoverError, NoUidsError, StagingError) as error:
        raise StartError(str(error)) from None


async def _run(settings: Settings, handed: State | None) -> None:
    dist = find_dist()
    tokens = _read_tokens(settings.tokens)
    own = _own_token(settings, handed)
    certificate = _certificate(settings)
    api_server = await _api_server(settings.kubernetes) if settings.kubernetes else None
    async with contextlib.AsyncExitStack() as stack:
        if api_server is not None:
            stack.push_async_callback(api_server.close)
        sweep()
        staging = Staging() if handed is None else Staging.adopted(handed["staging"])
        stack.callback(staging.remove)
        backend = make_backend(settings, dist, staging)
        stack.callback(backend.close)
        worker = staging.readable(dist.program("remotegpu-worker"))
        if handed is None:
            hardware = await probe(backend, worker, test=settings.self_test)
        else:
            hardware = await _hardware_again(backend, worker, handed["hardware"])
        if needs_landlock(settings) and not hardware.snapshot.landlock:
            raise StartError(
                "this kernel has no Landlock, which keeps sessions from each other's files and from ours: use Linux "
                "5.13 or later with Landlock among its security modules, or let sessions do without: --landlock warn, "
                "and not --worker-writes devices"
            )
        cgroups = Cgroups()
        if "memory" not in cgroups.controllers:
            _without_cgroup(settings)
        if files := administrators_files(settings):
            _log.warning("the appliance needs none of an administrator's files beside its own: %s", move_away(files))
        uids = Uids(settings.uid_base) if handed is None else Uids.adopted(handed["uids"])
        stack.callback(uids.close)
        socket_file = staging.private("control") / "socket"
        gateway = Gateway(dist.program("remotegpu-gateway"), certificate, socket_file, settings.local_sockets)
        appliance = Appliance(settings, gateway, worker, backend, hardware, uids, staging, own, cgroups)
        await appliance.serve(UsersToken(own) if own else tokens, api_server, socket_file, handed)


def _without_cgroup(settings: Settings) -> None:
    """Handles missing cgroups: raises StartError if they are required, else logs which limits are not enforced."""
    lacks = "no cgroup with a limit of memory can be made here"
    if settings.require_cgroup:
        raise StartError(
            f"{lacks}, and --require-cgroup wants one: run the appliance as a unit of systemd with Delegate=yes, as "
            "`remotegpu appliance init` writes it, or as root with the cgroup file system writable"
        )
    room = own_room()
    _log.warning(
        "%s: the kernel holds no session to its budget of this machine's memory; the appliance measures every two "
        "seconds, and ends who is past it%s",
        lacks,
        "" if room is None else f" or, near the {format_bytes(room.limit)} of its own container, who holds most",
    )


async def _hardware_again(backend: Backend, worker: Path, handed: State) -> Hardware:
    """Returns the hardware after a handover, with the old test results. Raises NoHandoverError if GPUs differ."""
    snapshot = (await probe(backend, worker, test=False)).snapshot
    before, now = handed["gpus"], [gpu.uuid_text for gpu in snapshot.gpus]
    if before != now:
        raise NoHandoverError(f"the GPUs are not those of before: {', '.join(before)} then, {', '.join(now)} now")
    return Hardware(snapshot, [SelfTest(handed["overhead_bytes"], problem) for problem in handed["problems"]])


class Appliance:
    """The parts of an appliance whose hardware is known."""

    def __init__(
        self,
        settings: Settings,
        gateway: Gateway,
        worker: Path,
        backend: Backend,
        hardware: Hardware,
        uids: Uids,
        staging: Staging,
        own: OwnToken | None,
        cgroups: Cgroups,
    ) -> None:
        self._settings = settings
        self._own = own
        self._gateway = gateway
        self._backend = backend
        self._hardware = hardware
        self._uids = uids
        self._staging = staging
        self._counters = Counters()
        gpus, overhead = hardware.snapshot.gpus, hardware.overhead_bytes
        limits = settings.limits
        # A spare worker has a context, as a session has.
        most = limits.sessions_per_gpu + settings.warm_contexts
        sizes = [backend.shareable(g.uuid_text, g.memory_bytes, overhead, most) for g in gpus]
        turns = settings.compute_mode is ComputeMode.TURNS
        self._code = CodeCache(settings.code_cache_bytes, settings.public_code)
        allocator = GpuLeases(sizes, divides_time=turns)
        for capacity, test in zip(allocator.gpus, hardware.tests, strict=True):
            capacity.unhealthy = test.problem
        self._health = GpuHealth(
            allocator.gpus,
            problem=lambda gpu: backend.problem(gpus[gpu].uuid_text),
            test=(lambda gpu: self_test(backend, gpus[gpu].uuid_text)) if settings.self_test else None,
            tells_recovery=lambda gpu: backend.tells_recovery(gpus[gpu].uuid_text),
        )
        hidden = [*secret_files(settings, own), staging.private("control")]
        # Hidden because it is a folder of the node, where workers must not write.
        local = [] if settings.local_sockets is None else [settings.local_sockets.absolute()]
        if backend.opens_files:
            # Hides code that zygotes load, and the folders of other sessions. Not with the software GPU, whose library
            # may be there.
            local.append(staging.private("control").parent)
        workers = Workers(
            worker,
            worker_arguments(settings, backend, overhead, self._code.most_of_tenant, hidden + local),
            worker_environment(backend, overhead),
            gpus,
            take_turns=turns,
        )
        self._spares = Spares(workers, uids, len(gpus)) if settings.warm_contexts else None
        self._sessions = Sessions(
            gateway=gateway,
            workers=workers.start if self._spares is None else self._spares.start,
            groups=LeaseGroups(cgroups),
            limits=limits,
            host_memory=host_memory(settings),
            code=self._code,
            grace_seconds=settings.grace_seconds,
            uids=uids,
            counters=self._counters,
            on_unhealthy=self._health.suspect,
            unhealthy=lambda gpu: allocator.gpus[gpu].unhealthy,
        )
        counters, sessions = self._counters, self._sessions
        self._environments = make_environments(
            Parts(settings, backend, hardware, sizes, uids, staging, counters, gateway, sessions, hidden)
        )
        self._leases = Leases(gpus, allocator, gateway, self._sessions, limits, settings.grace_seconds, self._counters)
        self._shortage = Shortage(self._own_processes, own_room())
        self._leases.shortage, self._leases.look_for_shortage = self._shortage, self._shortage.look
        self._suspensions = Suspensions(self._leases, self._sessions, Images(settings.images))
        snapshot = hardware.snapshot
        self._arrivals = Arrivals(self._leases, self._sessions, gateway, snapshot)
        self._departures = Departures(
            self._leases, self._sessions, self._suspensions, gateway, snapshot, settings.move_bytes_per_second
        )
        # Outside of Kubernetes each lease keeps the appliance in use. The lease of a claim may be idle for days.
        idle = self._sessions.none_left if settings.kubernetes else self._leases.none_left
        self._drain = Drain(self._leases, self._sessions, idle, settings.drain_seconds)
        self._unwatched = ""
        # Whether the appliance accepts connections.
        self._listens = False
        self._claims: ClaimLeases | None = None
        self._reviews: Reviews | None = None

    async def serve(
        self,
        tokens: Tokens | None,
        api_server: "ApiServer | None",
        socket_file: Path,
        handed: State | None,
    ) -> None:
        settings = self._settings
        authority: Authority = SecretAuthority(self._leases, tokens)
        if settings.kubernetes is not None and api_server is not None:
            named = settings.kubernetes
            self._claims = ClaimLeases(named.name, self._leases, self._suspensions, self._hardware.snapshot.gpus)
            self._arrivals.claims = self._claims
            self._reviews = Reviews(api_server.review, named.believe_seconds, self._counters)
            authority = ClaimAuthority(self._claims, self._reviews, named)
        if handed is None:
            _require_free(settings.host, settings.port)
        server = _control_server(socket_file)
        # Port 0 means any free port, for data too.
        default = settings.port + 1 if settings.port else 0
        data_port = default if settings.data_port is None else settings.data_port
        refusals = Refusals(self._counters.refusals)
        service = ControlService(
            backend=self._backend,
            hardware=self._hardware,
            leases=self._leases,
            sessions=self._sessions,
            suspensions=self._suspensions,
            arrivals=self._arrivals,
            departures=self._departures,
            destinations=Destinations(settings.move_to),
            environments=self._environments,
            authority=WithAcceptors(authority, self._sessions),
            name=settings.kubernetes.name if settings.kubernetes else "",
            tls=settings.cert is not None,
            managed_mib=settings.limits.managed_mib,
            data_port=lambda: self._gateway.port,
            data_socket=str(self._gateway.data_socket or ""),
            known=self._gateway.known,
            drain=self._drain.announce if settings.kubernetes else self._drain.begin,
            checks=self._checks,
            unserved=self._claims.unserved if self._claims else dict,
            refusals=refusals,
        )
        pb_grpc.add_ControlServicer_to_server(service, server)
        async with contextlib.AsyncExitStack() as stack:
            self._counters.registry.register(Gauges(service.inventory, self._backend.readings, self._processes))
            if settings.http is not None:
                stack.callback(self._serve_http(settings.http).stop)
            if settings.dashboard is not None:
                source = Source(service.inventory, authority.onlooker, refusals.note, wants_token=tokens is not None)
                stack.callback(self._serve_dashboard(settings.dashboard, source).stop)
            stack.callback(self._code.close)
            stack.push_async_callback(self._environments.stop)
            stack.push_async_callback(self._sessions.settled)
            # The gateway ends after the service, since it passes on the calls.
            stack.push_async_callback(self._gateway.stop)
            await server.start()
            stack.push_async_callback(server.stop, _CALLS_GRACE_SECONDS)
            asked = self._hear_hang_ups()
            if settings.port:
                self._keep_token(settings.port, stack)
            if handed is None:
                await self._gateway.start(settings.host, data_port, settings.port, self._gateway_event)
            else:
                self._adopt(handed)
            if not settings.port:
                self._keep_token(self._gateway.control_port, stack)
            self._listens = True
            stack.push_async_callback(self._leases.end_all, "the appliance shuts down")
            self._unwatched = self._follow_xids()
            # After `_listens`, since the self-tests of environments open sessions.
            await self._environments.start()
            if self._spares is not None:
                stack.push_async_callback(self._spares.close)
                self._spares.fill()
            self._announce(handed)
            follow = None
            if api_server is not None and self._claims is not None:
                follow = asyncio.create_task(api_server.follow_claims(self._claims))
            await self._until_stopped(server, asked, follow)

    def _keep_token(self, port: int, stack: contextlib.AsyncExitStack) -> None:
        """Writes the token to a file where this user's programs find it. Removes it at the end, but not at a handover.

        Raises StartError if the file cannot be written.
        """
        if self._own is None:
            return
        try:
            path = self._own.keep(self._settings.host, port)
        except OSError as error:
            raise StartError(
                f"the token of this appliance cannot be put into {self._own.folder} ({error.strerror}): make "
                "room there, or give --tokens FILE"
            ) from None
        stack.callback(self._own.forget, path)
        _log.info("programs of this user find the token of this appliance by themselves; others want it from %s", path)

    def _adopt(self, handed: State) -> None:
        self._leases.adopt(handed["leases"])
        self._sessions.adopt(handed["sessions"])
        self._gateway.adopt(handed["gateway"], self._settings.host, self._gateway_event)
        leases, sessions = len(self._leases.all()), len(self._sessions.all())
        _log.info("goes on as %s with %d leases and %d sessions", PROGRAM, leases, sessions)

    async def _start_anew(self, server: grpc.aio.Server, asked: asyncio.Event) -> NoReturn:
        """Restarts with the installed code at each request, without ending a session. Never returns."""
        while True:
            await asked.wait()
            asked.clear()
            try:
                self._check_handover()
                await check_new_code()
                self._check_handover()
            except NoHandoverError as error:
                _log.warning("does not start anew, and goes on as before: %s", error)
                continue
            _log.info("starts anew: calls of the next seconds are refused, sessions go on")
            await server.stop(_CALLS_GRACE_SECONDS)
            await self._leases.finish_ends()
            await self._sessions.finish_ends()
            if self._spares is not None:
                await self._spares.close()
            execute(self._handed())

    def _check_handover(self) -> None:
        """Raises NoHandoverError if there is state that cannot be handed over."""
        if self._settings.kubernetes is not None or self._settings.offload:
            raise NoHandoverError("only an appliance without --kubernetes and --offload can; start it anew instead")
        if self._leases.draining:
            raise NoHandoverError("it is draining")
        if self._arrivals.expected:
            raise NoHandoverError("a lease moves here: try again in a minute")
        if not all(lease.running.is_set() for lease in self._leases.all()):
            raise NoHandoverError("a lease is suspended, or moves: resume it, or try again when it is there")

    def _handed(self) -> State:
        return {
            "hardware": {
                "gpus": [gpu.uuid_text for gpu in self._hardware.snapshot.gpus],
                "overhead_bytes": self._hardware.overhead_bytes,
                "problems": [gpu.unhealthy for gpu in self._leases.allocator.gpus],
            },
            "staging": self._staging.handed(),
            "uids": self._uids.handed(),
            "leases": self._leases.handed(),
            "sessions": self._sessions.handed(),
            "gateway": self._gateway.handed(),
        }

    def _hear_hang_ups(self) -> asyncio.Event:
        """Returns an event that SIGHUP sets to request a restart. If the terminal closes, SIGHUP ends the appliance."""
        asked, had_terminal = asyncio.Event(), _has_terminal()

        def hear() -> None:
            if had_terminal and not _has_terminal():
                self._drain.signalled()
            else:
                asked.set()

        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hear)
        return asked

    async def _until_stopped(
        self, server: grpc.aio.Server, asked: asyncio.Event, follow: asyncio.Task[None] | None
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._drain.signalled)
        if self._settings.parent_fd is not None:
            loop.add_reader(self._settings.parent_fd, self._drain.begin, 0)
        watches = [asyncio.create_task(self._health.watch(self._leases.settle))] + ([follow] if follow else [])
        memory = MemoryWatch(self._sessions, host_memory(self._settings), own_room())
        watches.append(asyncio.create_task(memory.run()))
        watches.append(asyncio.create_task(self._start_anew(server, asked)))
        drained = asyncio.create_task(self._drain.finished())
        endings: list[asyncio.Future[Any]] = [drained, *watches, self._gateway.failed]
        await asyncio.wait(endings, return_when=asyncio.FIRST_COMPLETED)
        if self._gateway.failed.done():
            raise StartError(f"{self._gateway.failed.result()}; the appliance cannot run without it")
        for watch in watches:
            if watch.done():
                watch.result()  # a watch ends only by a bug, whose error must be seen
            watch.cancel()

    def _follow_xids(self) -> str:
        loop = asyncio.get_running_loop()
        index = {gpu.uuid_text: number for number, gpu in enumerate(self._hardware.snapshot.gpus)}

        def tell(uuid: str, number: int) -> None:
            # The event loop may have ended already.
            if uuid in index:
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._xid, index[uuid], number)

        return self._backend.follow_xids(tell)

    def _xid(self, gpu: int, number: int) -> None:
        xid = classify(number)
        self._counters.xids.labels(gpu=str(gpu), xid=str(number)).inc()
        self._health.strike(gpu, xid)
        if xid.effect is Effect.RESET:
            self._sessions.end_on(gpu, xid.code, f"gpu {gpu} of the appliance failed: {xid}")

    def _gateway_event(self, event: Event) -> None:
        match event:
            case events.SessionConnected(session_id):
                self._sessions.connected(session_id)
            case events.LeaseHeld(lease_id):
                self._leases.held(lease_id)
            case events.LeaseGone(lease_id):
                self._leases.gone(lease_id)
            case events.Refused(peer, reason):
                self._counters.refusals.labels(reason="door").inc()
                _log.info("the gateway refused %s: %s", one_line(peer, _MOST_LINE), one_line(reason, _MOST_LINE))
            case events.RefusedMore(count):
                self._counters.refusals.labels(reason="door").inc(count)
                _log.info("the gateway refused %d more, which are not listed", count)
            case events.Used(times):
                for used in times:
                    self._leases.used(used)
            case Restarted():
                self._counters.gateway_restarts.inc()
                self._leases.readmit()
                self._gateway.readmit_sessions()

    def _turned_away(self) -> None:
        """Counts a refused connection. Any thread may call it."""
        self._counters.refusals.labels(reason="page").inc()

    def _checks(self) -> list[pb.Check]:
        situation = Situation(
            settings=self._settings,
            gpus=self._leases.allocator.gpus,
            unwatched=self._unwatched,
            overhead_bytes=self._hardware.overhead_bytes,
            draining=self._leases.draining,
            shortage=self._shortage(),
            root=os.geteuid() == 0,
            open_files=open_to_others(self._settings),
            admin_files=administrators_files(self._settings),
            landlock=self._hardware.snapshot.landlock,
            claims=ClaimsState(self._claims.known, self._claims.trouble) if self._claims else None,
            identities=IdentitiesState(self._reviews.believe_seconds, self._reviews.trouble) if self._reviews else None,
            environments=self._environments.states(),
        )
        return list(checks(situation))

    def _own_processes(self) -> list[int]:
        return [os.getpid(), *([] if self._gateway.pid is None else [self._gateway.pid])]

    def _problem(self) -> str:
        if not self._listens:
            return "it does not listen yet"
        return "; ".join(f"{check.name}: {check.message}" for check in self._checks() if check.status == "fail")

    def _processes(self) -> dict[str, list[int]]:
        """Returns pids of running processes by part, without the acceptors of offload. Any thread may call it."""
        found = {"appliance": [os.getpid()]}
        if (gateway := self._gateway.pid) is not None:
            found["gateway"] = [gateway]
        workers = [each.process.pid for each in self._sessions.all() if each.process and each.process.kind == "worker"]
        return {**found, "worker": workers} if workers else found

    def _serve_http(self, address: tuple[str, int]) -> HttpServer:
        try:
            return HttpServer(address, self._counters.registry, self._problem, self._turned_away)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            message = (
                f"cannot serve HTTP on {address[0]}:{address[1]} ({reason}): choose another --metrics-port or --http"
            )
            raise StartError(message) from None

    def _serve_dashboard(self, address: tuple[str, int], source: Source) -> Dashboard:
        settings = self._settings
        try:
            certificate = (settings.cert, settings.key) if settings.cert and settings.key else None
            return Dashboard(address, certificate, source, self._turned_away)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise StartError(
                f"cannot serve the page on {address[0]}:{address[1]} ({reason}): choose another --dashboard"
            ) from None

    def _announce(self, handed: State | None) -> None:
        port, data_port = self._gateway.control_port, self._gateway.port
        gpus, host = len(self._hardware.snapshot.gpus), self._settings.host
        _log.info("ready: %d %s GPUs on %s:%d, data on port %d", gpus, self._backend.name, host, port, data_port)
        if self._settings.ready_fd is not None and handed is None:
            line = json.dumps({"endpoint": f"{host}:{port}", "data_port": data_port})
            with contextlib.suppress(OSError), open(self._settings.ready_fd, "w") as ready:  # noqa: PTH123
                ready.write(line + "\n")


def _has_terminal() -> bool:
    """Whether this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


async def _api_server(ours: Kubernetes) -> "ApiServer":
    # Imported here: only an appliance in Kubernetes needs the client of Kubernetes.
    try:
        from remotegpu.appliance.claims.kubernetes import ApiServer, NoClusterError  # noqa: PLC0415
    except ImportError as error:
        raise StartError(f"--kubernetes needs {error.name}: install `remotegpu[kubernetes]`") from None
    try:
        return await ApiServer.connect(audiences(ours))
    except NoClusterError as error:
        raise StartError(f"--kubernetes: no API server ({error}); run it in a pod, or set KUBECONFIG") from None


def needs_landlock(settings: Settings) -> bool:
    """Whether Landlock is required, or needed by another option."""
    return settings.landlock is Landlock.REQUIRE or settings.worker_writes is WorkerWrites.DEVICES


def worker_arguments(
    settings: Settings, backend: Backend, context_bytes: int, shared_code_bytes: int, secret: list[Path]
) -> list[str]:
    """Returns the arguments that all workers get: paths that even a hostile worker cannot read, and budgets."""
    hidden = [("--hide", str(path)) for path in secret]
    files = () if backend.opens_files else ("--no-files",)
    writes = ("--write-devices-only",) if settings.worker_writes is WorkerWrites.DEVICES else ()
    landlock = ("--require-landlock",) if needs_landlock(settings) else ()
    budgets = (
        f"image-bytes={settings.limits.image_bytes}",
        f"context-bytes={context_bytes}",
        f"shared-code-bytes={shared_code_bytes}",
        # Less than the budget: shared memory of the client counts as the worker's, and must not end the session.
        f"client-bytes={host_memory(settings).per_lease // 4}",
    )
    told = (("--budget", budget) for budget in (*budgets, *settings.limits.session_budgets))
    options = itertools.chain.from_iterable((*hidden, *told))
    grace = ("--grace", str(settings.grace_seconds))
    return ["--driver", str(backend.driver), *options, *files, *writes, *landlock, *grace]


def host_memory(settings: Settings) -> HostMemory:
    """Returns the limits of this machine's memory: by default half for a lease, three quarters for a tenant."""
    whole, limits = physical_bytes(), settings.limits
    per_lease = whole // 2 if limits.host_bytes_per_lease is None else limits.host_bytes_per_lease
    per_tenant = whole * 3 // 4 if limits.host_bytes_per_tenant is None else limits.host_bytes_per_tenant
    return HostMemory(per_lease, per_tenant, software=settings.backend == "software")


def make_environments(parts: Parts) -> Environments:
    return required_offload().environments(parts) if parts.settings.offload else NoEnvironments()


def make_backend(settings: Settings, dist: Dist, staging: Staging) -> Backend:
    # Imported here: a software appliance does not need the bindings of NVML.
    if settings.backend == "cuda":
        from remotegpu.appliance.backends.cuda import CudaBackend  # noqa: PLC0415

        return CudaBackend(settings, dist.root)
    from remotegpu.appliance.backends.software import SoftwareBackend  # noqa: PLC0415

    library = settings.driver or dist.library(dist.native)
    staging.readable(library.with_name("libnvidia-ml.so.1"))
    return SoftwareBackend(settings, staging.readable(library))


def _control_server(socket_file: Path) -> grpc.aio.Server:
    if len(os.fsencode(socket_file)) > _LONGEST_SOCKET_NAME:
        raise StartError(
            f"the temporary folder {socket_file.parents[2]} has too long a name: set TMPDIR to a shorter one"
        )
    server = grpc.aio.server(options=_CALL_LIMITS)
    server.add_insecure_port(f"unix:{socket_file}")
    return server


def _require_free(host: str, port: int) -> None:
    """Raises StartError if the port is in use. Checked early, so that the gateway does not fail with a second error."""
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            pass
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise StartError(f"cannot listen on {host}:{port} ({reason}): choose another --listen") from None


def _read_tokens(path: Path | None) -> TokenFile | None:
    if path is None:
        return None
    try:
        return TokenFile(path)
    except (OSError, ValueError) as error:
        raise StartError(f"the token file {path} cannot be used: {error}") from None


def _own_token(settings: Settings, handed: State | None) -> OwnToken | None:
    """Returns the token for this user's programs; None if options choose another authentication."""
    if settings.tokens is not None or settings.kubernetes is not None or settings.anybody:
        return None
    try:
        kept = None if handed is None else own_token.again(settings.host, handed["gateway"]["control_port"])
        return kept or own_token.make()
    except own_token.NoPlaceError as error:
        raise StartError(str(error)) from None


def _certificate(settings: Settings) -> tuple[Path, Path] | None:
    """Returns the paths of certificate and key, without resolving links: a mounted Secret changes by a new link."""
    if settings.cert is None and settings.key is None:
        return None
    if settings.cert is None or settings.key is None:
        raise StartError("--cert and --key belong together: give both, or none for no TLS")
    try:
        for file in (settings.cert, settings.key):
            file.open("rb").close()
    except OSError as error:
        raise StartError(f"{error.filename} cannot be read: {error.strerror}") from None
    return settings.cert.absolute(), settings.key.absolute()
