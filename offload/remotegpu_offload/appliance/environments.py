"""The environments that an appliance serves: tests and restarts them, and chooses one for each session."""

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import remotegpu
import remotegpu_offload
from remotegpu.api.names import DIST_ENV
from remotegpu.appliance.checks import EnvironmentState
from remotegpu.appliance.gateway import Gateway
from remotegpu.appliance.machine.cgroups import Cgroups, Group
from remotegpu.appliance.metrics import Counters
from remotegpu.appliance.packets import OnPacket, packet_pair
from remotegpu.appliance.parts import Parts
from remotegpu.appliance.sessions.processes import Launch, ProcessError
from remotegpu.appliance.sessions.sessions import SessionRefusedError, Sessions
from remotegpu.appliance.settings import EnvironmentOption
from remotegpu.appliance.shares.views import PhysicalGpu
from remotegpu.extensions import NoEnvironmentError
from remotegpu.paths import find_dist
from remotegpu_offload.acceptor import versions
from remotegpu_offload.acceptor.environment import Environment
from remotegpu_offload.appliance.acceptor import Acceptor
from remotegpu_offload.appliance.devices import (
    Access,
    access_of,
    client_variables,
    nodes_of,
    refusal_of,
    refusal_of_lease,
    self_test_lease,
    stage,
    state_of,
    visible,
)
from remotegpu_offload.appliance.zygote import Zygote

if TYPE_CHECKING:
    import socket

    from remotegpu.appliance.sessions.state import Session

_log = logging.getLogger(__name__)

# A session that opens while the zygote restarts waits at most this long.
_WAIT_SECONDS: Final = 30.0
_RETRY_SECONDS: Final = (0.0, 1.0, 5.0, 30.0)
_PROCESSES: Final = 1024
# Variables that choose the kernels of NumPy's OpenBLAS. An administrator sets them where OpenBLAS recognises the
# processor wrongly.
_PROCESSOR: Final = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The settings and services that all environments of an appliance share."""

    packages: Path  # this project's packages, for the environments' PYTHONPATH
    scratch: Path  # parent of the folders of sessions that have no file system of their own
    readable: Sequence[Path]  # paths that the administrator lets sessions read
    hidden: Sequence[Path]  # secrets
    variables: Mapping[str, str]  # variables of the zygotes
    client: Mapping[str, str]  # variables of zygotes whose sessions use CUDA through the client's library
    gpus: Sequence[PhysicalGpu]
    shareable: Sequence[int]  # bytes of each GPU
    real: bool  # True for NVIDIA GPUs, which are named by their UUIDs
    memory_bytes: int  # most main memory of one session
    cgroups: Cgroups
    counters: Counters
    gateway: Gateway
    sessions: Sessions


class EnvironmentServer:
    """One environment and its zygote.

    `environment` is None until its self-test has passed. `problem` is the reason why sessions cannot use the
    environment now; "" if they can.
    """

    def __init__(self, option: EnvironmentOption, around: Surroundings) -> None:
        self.name = option.name
        self.environment: Environment | None = None
        self.problem = "it has not been started yet"
        self.isolation: dict[str, Any] = {}
        self.access = access_of(option, real=around.real)
        self.refused = bool(refusal_of(option))
        self._option = option
        self._around = around
        self._zygote: Zygote | None = None
        self._ready = asyncio.Event()

    async def start(self) -> None:
        """Starts the zygote and tests the environment. Does not raise: `problem` holds the reason of a failure."""
        if refusal := refusal_of(self._option):
            self.problem = refusal
            _log.error("environment %s is refused: %s", self.name, refusal)
            return
        variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", DIST_ENV: str(find_dist().root)}
        variables |= {name: os.environ[name] for name in _PROCESSOR if name in os.environ}
        variables |= self._around.client if self.access is Access.SHARE else self._around.variables
        zygote = Zygote(self._option.python, self._around.packages, variables)
        try:
            await zygote.start()
            self._zygote = zygote
            await self._probe(zygote)
        except ProcessError as error:
            self.problem = str(error)
            _log.error("environment %s is of no use: %s", self.name, error)
            await zygote.stop()
            self._zygote = None
        else:
            self.problem = ""
            self._ready.set()
            assert self.environment is not None
            _log.info("environment %s is ready: %s", self.name, describe(self.environment))

    async def keep(self) -> None:
        """Restarts the environment whenever its zygote ends.

        Runs in a task; returns only if the environment is refused.
        """
        failures = 0
        while not self.refused:
            if self._zygote is not None:
                how = await self._zygote.ended()
                self._ready.clear()
                self._zygote = None
                self.problem = f"its interpreter ended ({how}) and is being started again"
                self._around.counters.zygote_restarts.labels(environment=self.name).inc()
                _log.error("environment %s: %s", self.name, self.problem)
            await asyncio.sleep(_RETRY_SECONDS[min(failures, len(_RETRY_SECONDS) - 1)])
            await self.start()
            failures = 0 if self._zygote is not None else failures + 1

    async def stop(self) -> None:
        if self._zygote is not None:
            await self._zygote.stop()

    async def launch(self, session: "Session", on_packet: OnPacket) -> tuple[Acceptor, "socket.socket"]:
        """Forks an acceptor; implements `processes.Launch`. Raises ProcessError."""
        # If the session does not open the devices itself, its worker accounts for its part of a GPU.
        session.on_gpu = self.access is Access.OPEN
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WAIT_SECONDS):
                await self._ready.wait()
        environment, zygote = self.environment, self._zygote
        if environment is None or zygote is None:
            raise ProcessError(f"environment {self.name} is of no use now: {self.problem}")
        placement = session.lease.placement
        if refusal := refusal_of_lease(self._option, placement, self._around.shareable):
            raise ProcessError(refusal)
        share = self.access is Access.SHARE and environment.backend == "cuda"
        packet = {
            "environment": environment.to_dict(),
            "visible": self._visible(environment, placement.gpus),
            "memory_fractions": self._grant(environment, session),
        }
        acceptor, gateway_end = await self._fork(zygote, session, packet, on_packet, share=share)
        self._around.counters.offload_sessions.labels(environment=self.name).inc()
        return acceptor, gateway_end

    def devices(self) -> tuple[str, bool]:
        """Returns `devices.state_of` for this environment; `("", False)` if it serves no accelerator."""
        serves = not self.refused and (self.environment is None or self.environment.backend != "cpu")
        return state_of(self._option, self.access) if serves else ("", False)

    async def _probe(self, zygote: Zygote) -> None:
        """Runs the self-test: a session without a client, in the sandbox of ordinary sessions, describes the
        interpreter."""

        async def launch(session: "Session", on_packet: OnPacket) -> tuple[Acceptor, "socket.socket"]:
            session.on_gpu = self.access is Access.OPEN
            packet = {
                "probe": True,
                # A software GPU executes no machine code, and torch's kernels are machine code only.
                "kernels": self._around.real or self.access is not Access.SHARE,
                "name": self.name,
                "backend": self._option.backend,
                "visible": {} if self.access is Access.OPEN else visible(self.access, "", ""),
                "memory_fractions": [],
            }
            share = self.access is Access.SHARE
            return await self._fork(zygote, session, packet, on_packet, share=share)

        sessions = self._around.sessions
        lease = self_test_lease(self._around.gpus, self.access)
        try:
            session, _ = await sessions.open(lease, 0, f"self-test of {self.name}", launch=launch)
        except SessionRefusedError as error:
            raise ProcessError(str(error)) from None
        assert isinstance(session.process, Acceptor)
        found = session.process.first.result()
        await sessions.end(session, 0, "its self-test is done")
        if "environment" not in found:
            raise ProcessError(str(found.get("reason")))
        self.environment = Environment.from_dict(found["environment"])
        self.isolation = found["isolation"]

    async def _fork(
        self,
        zygote: Zygote,
        session: "Session",
        packet: dict[str, Any],
        on_packet: OnPacket,
        *,
        share: bool,
    ) -> tuple[Acceptor, "socket.socket"]:
        """Forks an acceptor from the zygote, and registers it at the gateway.

        `share`: the session uses CUDA through the client's library. Raises ProcessError.
        """
        around, name = self._around, session.session_id
        folder = around.scratch / name
        group = Group(())
        control, control_theirs = packet_pair()
        gateway_end, data_theirs = packet_pair()
        asked, asking = packet_pair()
        try:
            folder.mkdir(mode=0o700)
            group = around.cgroups.create(name, around.memory_bytes, _PROCESSES)
            where: dict[str, Any] = {
                "id": name,
                "uid": session.uid,
                "readable": [str(path.absolute()) for path in around.readable],
                "hidden": [str(path.absolute()) for path in around.hidden],
                "folder": str(folder),
                "cgroups": group.members,
                "processes": _PROCESSES,
                "scratch_bytes": around.memory_bytes,
                "nodes": nodes_of(self._option, self.access),
            }
            given = [control_theirs, data_theirs]
            if share:
                endpoint = f"its-appliance:{around.gateway.control_port}"
                where["share"] = {"endpoint": endpoint, "lease_id": session.lease.lease_id}
                given.append(asking)
            forked = await zygote.fork({**packet, **where}, given)
        except BaseException as error:
            for ours in (control, gateway_end, asked):
                ours.close()
            group.remove()
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, ProcessError):
                raise ProcessError(f"environment {self.name}: {error}") from None
            if isinstance(error, OSError):
                raise ProcessError(f"no place for a session of {self.name}: {error}") from None
            raise
        finally:
            for theirs in (control_theirs, data_theirs, asking):
                theirs.close()
        if share:
            around.gateway.admit_acceptor(name, asked)
        else:
            asked.close()
        return Acceptor(forked, control, folder, group, on_packet, self_test="probe" in packet), gateway_end

    def _visible(self, environment: Environment, gpus: Sequence[int]) -> dict[str, str]:
        """Returns the variables that show a session only the devices of its lease."""
        around = self._around
        listed = ",".join(around.gpus[gpu].uuid_text if around.real else str(gpu) for gpu in gpus)
        return visible(self.access, environment.backend, listed)

    def _grant(self, environment: Environment, session: "Session") -> list[float]:
        """Grants all free memory of the lease, as fractions of the GPUs. Returns [] unless sessions open NVIDIA's
        devices themselves.

        Raises ProcessError if no memory is free.
        """
        if not self._around.real or environment.backend != "cuda" or self.access is not Access.OPEN:
            return []
        fractions = []
        for gpu, quota in zip(session.lease.placement.gpus, session.lease.quotas, strict=True):
            granted = quota.grant(session.session_id, quota.free, quota.free)
            if not granted:
                raise ProcessError("other processes have all memory of this lease: end one, or take a lease of its own")
            fractions.append(granted / self._around.gpus[gpu].memory_bytes)
        return fractions


class Environments:
    """All environments of the appliance: starts and stops them, and chooses one for each session."""

    def __init__(self, servers: Sequence[EnvironmentServer]) -> None:
        self.servers = servers
        self._keepers: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Starts all environments; returns when each has passed or failed its self-test."""
        await asyncio.gather(*(server.start() for server in self.servers))
        self._keepers = [asyncio.create_task(server.keep()) for server in self.servers]

    async def stop(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.gather(*(server.stop() for server in self.servers))

    def alive(self) -> list[Environment]:
        """Returns the environments that serve sessions now, or will after a restart."""
        return [server.environment for server in self.servers if server.environment is not None]

    def states(self) -> list[EnvironmentState]:
        """Returns the environments' states for the health checks."""
        return [
            EnvironmentState(
                name=server.name,
                description=describe(server.environment) if server.environment else "",
                problem=server.problem,
                refused=server.refused,
                devices=devices,
                unlimited=unlimited,
                level=server.isolation.get("level", ""),
                lacks=server.isolation.get("lacks", ()),
            )
            for server in self.servers
            for devices, unlimited in [server.devices()]
        ]

    def choose(
        self, name: str, backends: Sequence[str], theirs: Mapping[str, str], *, allow_skew: bool
    ) -> tuple[Environment, Launch]:
        """Chooses the environment for a session, and returns it with its launcher. `theirs`: the client's versions.

        Raises NoEnvironmentError.
        """
        named = [server for server in self.servers if name in ("", server.name)]
        if not named:
            raise NoEnvironmentError(f"this appliance has no environment {name!r}; {self._offered()}")
        usable = [(server, server.environment) for server in named if server.environment is not None]
        if not usable:
            problems = "; ".join(f"{server.name}: {server.problem}" for server in named)
            raise NoEnvironmentError(f"no environment of this appliance works ({problems}); see `remotegpu doctor`")
        fitting = [
            (server, environment)
            for backend in backends or [""]
            for server, environment in usable
            if backend in ("", environment.backend)
        ]
        if not fitting:
            wanted = " or ".join(backends)
            where = f"environment {name}" if name else "no environment of this appliance"
            raise NoEnvironmentError(f"{where} is {'not ' if name else ''}for {wanted}; {self._offered()}")
        refusals = []
        for server, environment in fitting:
            refusal = versions.compare(theirs, environment.versions).sentence(f"environment {environment.name}")
            if not refusal or allow_skew:
                return environment, server.launch
            refusals.append(refusal)
        raise NoEnvironmentError(refusals[0])

    def _offered(self) -> str:
        listed = ", ".join(f"{environment.name} ({environment.backend})" for environment in self.alive())
        return f"there are {listed}" if listed else "and none of the others works; see `remotegpu doctor`"


def make_environments(parts: Parts) -> Environments:
    settings, backend, staging = parts.settings, parts.backend, parts.staging
    real = backend.name == "cuda"
    shared = any(access_of(option, real=real) is Access.SHARE for option in settings.offload)
    around = Surroundings(
        packages=stage_packages(staging.folder("offload") / "python"),
        scratch=staging.folder("sessions"),
        readable=settings.readable,
        hidden=parts.hidden,
        variables=backend.environment(0) if real else {},
        client=client_variables(stage(staging, find_dist()), software=not real) if shared else {},
        gpus=parts.hardware.snapshot.gpus,
        shareable=parts.shareable,
        real=real,
        memory_bytes=settings.offload_memory_bytes or half_of_memory(),
        cgroups=Cgroups(),
        counters=parts.counters,
        gateway=parts.gateway,
        sessions=parts.sessions,
    )
    return Environments([EnvironmentServer(option, around) for option in settings.offload])


def describe(environment: Environment) -> str:
    """Describes the environment in one line for users."""
    packages = "".join(f", {name} {version}" for name, version in sorted(environment.packages.items()))
    devices = f" ({', '.join(environment.devices)})" if environment.devices else ""
    return f"{environment.backend}{devices}, Python {environment.python}{packages}"


def stage_packages(folder: Path) -> Path:
    """Copies this project's packages that acceptors import to a folder that every user can read.

    Returns `folder`, for PYTHONPATH.
    """
    import cloudpickle  # noqa: PLC0415 (imported only to find its folder)

    base = Path(remotegpu.__file__).parent
    # A folder `offload` in `remotegpu` is left over from before `remotegpu_offload`.
    for source, target, left_out in (
        (base, folder / "remotegpu", ("appliance", "cli", "rpc", "_dist")),
        (Path(cloudpickle.__file__).parent, folder / "cloudpickle", ()),
        (Path(remotegpu_offload.__file__).parent, folder / "remotegpu_offload", ("appliance", "cli")),
    ):
        ignored = shutil.ignore_patterns("__pycache__", *left_out)
        shutil.copytree(source, target, copy_function=shutil.copyfile, ignore=ignored)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


def half_of_memory() -> int:
    """Returns half of this machine's memory, in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
