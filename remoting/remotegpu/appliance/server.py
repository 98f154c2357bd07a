"""Puts the parts together, runs them, and takes them down in order."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import grpc.aio

from remotegpu.appliance.allocation import Allocator
from remotegpu.appliance.backends.base import Backend, BackendError
from remotegpu.appliance.checks import Situation, checks
from remotegpu.appliance.door import Door, DoorError
from remotegpu.appliance.gpu_health import GpuHealth
from remotegpu.appliance.hardware import Hardware, probe, self_test, worker_environment
from remotegpu.appliance.leases import Leases
from remotegpu.appliance.metrics import Counters, serve_metrics
from remotegpu.appliance.packets import Packet
from remotegpu.appliance.service import ControlService
from remotegpu.appliance.sessions import Sessions
from remotegpu.appliance.settings import Settings
from remotegpu.appliance.tokens import TokenFile
from remotegpu.appliance.workers import Staging, Uids
from remotegpu.paths import Dist, find_dist
from remotegpu.rpc import pb, pb_grpc

_log = logging.getLogger(__name__)

_CALLS_GRACE_SECONDS = 1.0


class StartError(Exception):
    """The appliance cannot start, or not go on; the message says why and what to do."""


def run(settings: Settings) -> None:
    """Serve until a signal ends it, or nobody is left at the other end of `parent_fd`."""
    # Whoever started us may have blocked signals for itself, as `remotegpu run` does; workers would inherit that.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    logging.basicConfig(
        level=logging.ERROR if settings.quiet else logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    try:
        asyncio.run(Appliance(settings).serve())
    except (BackendError, DoorError) as error:
        raise StartError(str(error)) from None


class Appliance:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._counters = Counters()
        self._stop = asyncio.Event()
        self._deadline = settings.drain_seconds

    async def serve(self) -> None:
        dist = find_dist()
        tokens = _read_tokens(self._settings.tokens)
        certificate = _certificate(self._settings)
        staging = Staging()
        backend = make_backend(self._settings, dist, staging)
        try:
            worker = staging.readable(dist.program("remotegpu-worker"))
            hardware = await probe(backend, worker, test=self._settings.self_test)
            await self._serve(dist, worker, backend, hardware, tokens, certificate)
        finally:
            backend.close()
            staging.remove()

    async def _serve(
        self,
        dist: Dist,
        worker: Path,
        backend: Backend,
        hardware: Hardware,
        tokens: TokenFile | None,
        certificate: tuple[Path, Path] | None,
    ) -> None:
        settings = self._settings
        self._backend, self._hardware = backend, hardware
        gpus = hardware.snapshot.gpus
        limits = settings.limits
        sizes = [
            backend.shareable(g.uuid_text, g.memory_bytes, hardware.overhead_bytes, limits.sessions_per_gpu)
            for g in gpus
        ]
        self._sessions = Sessions(
            program=worker,
            driver=backend.driver,
            environment=worker_environment(backend, hardware.overhead_bytes),
            gpus=gpus,
            limits=limits,
            uids=Uids(settings.uid_base),
            counters=self._counters,
            on_unhealthy=self._suspect,
        )
        self._leases = Leases(gpus, Allocator(sizes), self._sessions, limits.leases, self._counters)
        for capacity, test in zip(self._leases.allocator.gpus, hardware.tests, strict=True):
            capacity.unhealthy = test.problem
        self._health = GpuHealth(
            self._leases.allocator.gpus,
            problem=lambda gpu: backend.problem(gpus[gpu].uuid_text),
            test=(lambda gpu: self_test(backend, gpus[gpu].uuid_text)) if settings.self_test else None,
            on_recovery=self._leases.settle,
        )

        # Without this two appliances could listen on one port, each getting half of the calls.
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        host, port = settings.host, settings.port
        credentials = _server_credentials(certificate)
        address = f"{host}:{port}"
        _require_free(host, port)
        port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
        data_port = settings.data_port if settings.data_port is not None else (port + 1 if settings.port else 0)
        door = Door(
            program=dist.program("remotegpu-door"),
            host=host,
            port=data_port,
            certificate=certificate,
            on_event=self._door_event,
            on_restart=self._door_restarted,
        )
        await door.start()
        self._door = self._leases.door = self._sessions.door = door
        service = ControlService(
            backend=backend,
            hardware=hardware,
            leases=self._leases,
            sessions=self._sessions,
            tokens=tokens,
            tls=certificate is not None,
            data_port=lambda: door.port,
            drain=self._drain,
            checks=self._checks,
        )
        pb_grpc.add_ControlServicer_to_server(service, server)
        stop_metrics = self._start_metrics(service)
        await server.start()
        try:
            self._announce(host, port, door.port)
            await self._until_stopped(door)
        finally:
            await self._leases.end_all("the appliance shuts down")
            await server.stop(_CALLS_GRACE_SECONDS)
            await door.stop()
            await self._sessions.settled()
            stop_metrics()
        if door.failed.done():
            raise StartError(f"{door.failed.result()}; the appliance cannot go on without it")

    async def _until_stopped(self, door: Door) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        if self._settings.parent_fd is not None:
            loop.add_reader(self._settings.parent_fd, self._stop_now)
        health = asyncio.create_task(self._health.watch())
        door.failed.add_done_callback(lambda _: self._stop.set())
        await self._stop.wait()
        if not door.failed.done() and self._deadline > 0:
            await self._until_no_lease_is_left()
        health.cancel()

    def _signalled(self) -> None:
        """The first signal drains, a second one does not wait."""
        if self._leases.draining:
            self._deadline = 0
        self._drain(self._deadline)

    def _stop_now(self) -> None:
        self._deadline = 0
        self._drain(0)

    def _drain(self, deadline_seconds: float) -> int:
        alive = len(self._sessions.all())
        if not self._leases.draining:
            _log.info("draining: %d sessions have up to %.0f s", alive, deadline_seconds)
        self._leases.draining = True
        self._deadline = deadline_seconds
        self._stop.set()
        return alive

    async def _until_no_lease_is_left(self) -> None:
        """Up to the deadline, which a second signal shortens."""
        since = asyncio.get_running_loop().time()
        while not self._leases.none_left.is_set():
            left = since + self._deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._leases.none_left.wait(), min(left, 0.5))

    def _door_event(self, packet: Packet) -> None:
        some_id = str(packet.get("id", ""))
        match packet.get("op"):
            case "session_connected":
                self._sessions.connected(some_id)
            case "lease_held":
                self._leases.held(some_id)
            case "lease_gone":
                self._leases.gone(some_id)
            case "refused":
                self._counters.refusals.labels(reason="door").inc()
                _log.info("the door refused %s: %s", packet.get("peer"), packet.get("reason"))

    def _suspect(self, gpu: int, message: str) -> None:
        self._health.suspect(gpu, message)

    def _door_restarted(self) -> None:
        self._counters.door_restarts.inc()
        self._leases.readmit()

    def _checks(self) -> list[pb.Check]:
        return list(
            checks(
                Situation(
                    settings=self._settings,
                    gpus=self._leases.allocator.gpus,
                    overhead_bytes=self._hardware.overhead_bytes,
                    draining=self._leases.draining,
                    root=os.geteuid() == 0,
                )
            )
        )

    def _start_metrics(self, service: ControlService) -> Callable[[], None]:
        if self._settings.metrics_port is None:
            return lambda: None
        try:
            return serve_metrics(self._counters, service.inventory, self._settings.metrics_port)
        except OSError as error:
            raise StartError(
                f"cannot serve metrics on 127.0.0.1:{self._settings.metrics_port}: {error.strerror}; "
                "choose another --metrics-port"
            ) from None

    def _announce(self, host: str, port: int, data_port: int) -> None:
        gpus = len(self._hardware.snapshot.gpus)
        _log.info("ready: %d %s GPUs on %s:%d, data on port %d", gpus, self._backend.name, host, port, data_port)
        if self._settings.ready_fd is not None:
            line = json.dumps({"endpoint": f"{host}:{port}", "data_port": data_port})
            with contextlib.suppress(OSError), open(self._settings.ready_fd, "w") as ready:  # noqa: PTH123
                ready.write(line + "\n")


def make_backend(settings: Settings, dist: Dist, staging: Staging) -> Backend:
    # Imported here: NVML's bindings are of no use to a software appliance.
    if settings.backend == "cuda":
        from remotegpu.appliance.backends.cuda import CudaBackend  # noqa: PLC0415

        return CudaBackend(settings, dist.root)
    from remotegpu.appliance.backends.software import SoftwareBackend  # noqa: PLC0415

    library = settings.driver or dist.library(dist.native)
    staging.readable(library.with_name("libnvidia-ml.so.1"))
    return SoftwareBackend(settings, staging.readable(library))


def _require_free(host: str, port: int) -> None:
    """gRPC does not say why it cannot listen, and writes a line of its own about it."""
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


def _certificate(settings: Settings) -> tuple[Path, Path] | None:
    if settings.cert is None and settings.key is None:
        return None
    if settings.cert is None or settings.key is None:
        raise StartError("--cert and --key belong together: give both, or none for no TLS")
    return settings.cert.resolve(), settings.key.resolve()


def _server_credentials(certificate: tuple[Path, Path] | None) -> grpc.ServerCredentials | None:
    if certificate is None:
        return None
    try:
        cert, key = (path.read_bytes() for path in certificate)
    except OSError as error:
        raise StartError(f"{error.filename} cannot be read: {error.strerror}") from None
    return grpc.ssl_server_credentials([(key, cert)])
