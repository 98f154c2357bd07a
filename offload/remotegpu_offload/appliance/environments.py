"""The environments that an appliance serves: proven at the start, kept running, and chosen for each session."""

import asyncio
import contextlib
import itertools
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import remotegpu
import remotegpu_offload
from remotegpu.api.names import DIST_ENV
from remotegpu.appliance.backends.base import Backend
from remotegpu.appliance.cgroups import Cgroups, Group
from remotegpu.appliance.checks import EnvironmentState
from remotegpu.appliance.hardware import Hardware
from remotegpu.appliance.metrics import Counters
from remotegpu.appliance.packets import OnPacket, Packet, packet_pair
from remotegpu.appliance.processes import Launch, ProcessError
from remotegpu.appliance.settings import EnvironmentOption, Settings
from remotegpu.appliance.staging import Staging
from remotegpu.appliance.uids import NoUidsError, Uids
from remotegpu.appliance.views import PhysicalGpu
from remotegpu.extensions import NoEnvironmentError
from remotegpu.paths import find_dist
from remotegpu_offload.acceptor import versions
from remotegpu_offload.acceptor.environment import VISIBLE, Environment
from remotegpu_offload.appliance.acceptor import Acceptor
from remotegpu_offload.appliance.zygote import Zygote

if TYPE_CHECKING:
    import socket

    from remotegpu.appliance.state import Session

_log = logging.getLogger(__name__)

_PROBE_SECONDS: Final = 120.0
# A session that comes while the zygote starts again waits for it this long.
_WAIT_SECONDS: Final = 30.0
_RETRY_SECONDS: Final = (0.0, 1.0, 5.0, 30.0)
_PROCESSES: Final = 1024
# Which of its kernels NumPy's OpenBLAS takes on this machine: an administrator sets them where its own choice is wrong.
_PROCESSOR: Final = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all environments of an appliance share."""

    packages: Path  # ours, for the environments' PYTHONPATH
    scratch: Path  # where sessions get folders, if they have no file system of their own
    hidden: Sequence[Path]  # secrets
    variables: Mapping[str, str]  # for the zygotes
    gpus: Sequence[PhysicalGpu]
    cuda: bool  # GPUs are real: named by their UUIDs, and their memory is granted
    memory_bytes: int  # of a session in the machine
    uids: Uids
    cgroups: Cgroups
    counters: Counters


class EnvironmentServer:
    """One environment. `environment` is None until its self-test has passed; `problem` says why it is of no use."""

    def __init__(self, option: EnvironmentOption, around: Surroundings) -> None:
        self.name = option.name
        self.environment: Environment | None = None
        self.problem = "it has not been started yet"
        self.isolation: dict[str, Any] = {}
        self._option = option
        self._around = around
        self._zygote: Zygote | None = None
        self._ready = asyncio.Event()
        self._ids = itertools.count(1)

    async def start(self) -> None:
        """Start the zygote and prove the environment; what fails is in `problem`."""
        variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", DIST_ENV: str(find_dist().root)}
        variables |= {name: os.environ[name] for name in _PROCESSOR if name in os.environ}
        variables |= self._around.variables
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
        """Start it again whenever it ends. For a task of its own; it never returns."""
        failures = 0
        while True:
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
        """A `processes.Launch`: fork an acceptor."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ready.wait(), _WAIT_SECONDS)
        environment, zygote = self.environment, self._zygote
        if environment is None or zygote is None:
            raise ProcessError(f"environment {self.name} is of no use now: {self.problem}")
        packet = {
            "environment": environment.to_dict(),
            "accelerator": environment.backend != "cpu",
            "visible": self._visible(environment, session.lease.placement.gpus),
            "memory_fractions": self._grant(environment, session),
        }
        acceptor, gateway_end = await self._fork(zygote, session.session_id, session.uid, packet, on_packet)
        self._around.counters.offload_sessions.labels(environment=self.name).inc()
        return acceptor, gateway_end

    async def _probe(self, zygote: Zygote) -> None:
        """A session without a client says what it finds, in the sandbox of all sessions."""
        try:
            uid = self._around.uids.take()
        except NoUidsError as error:
            raise ProcessError(str(error)) from None
        packet = {
            "probe": True,
            "name": self.name,
            "backend": self._option.backend,
            "accelerator": self._around.cuda or self._option.backend not in ("", "cpu"),
            # A machine whose GPUs are made of CPU serves no others, unless it is told to.
            "visible": {} if self._around.cuda or self._option.backend else _hidden_devices(),
            "memory_fractions": [],
        }
        name = f"probe-{self.name}-{next(self._ids)}"
        try:
            acceptor, gateway_end = await self._fork(zygote, name, uid, packet, self._log)
            gateway_end.close()
            try:
                found = await acceptor.answer("described", _PROBE_SECONDS)
            finally:
                await acceptor.kill()
                acceptor.close()
        finally:
            self._around.uids.give_back(uid)
        if "environment" not in found:
            raise ProcessError(str(found.get("reason")))
        self.environment = Environment.from_dict(found["environment"])
        self.isolation = found["isolation"]

    async def _fork(
        self, zygote: Zygote, name: str, uid: int | None, packet: dict[str, Any], on_packet: OnPacket
    ) -> tuple[Acceptor, "socket.socket"]:
        around = self._around
        folder = around.scratch / name
        group = Group(())
        control, control_theirs = packet_pair()
        gateway_end, data_theirs = packet_pair()
        try:
            folder.mkdir(mode=0o700)
            group = around.cgroups.create(name, around.memory_bytes, _PROCESSES)
            where = {
                "id": name,
                "uid": uid,
                "hidden": [str(path.absolute()) for path in around.hidden],
                "folder": str(folder),
                "cgroups": group.members,
                "processes": _PROCESSES,
                "scratch_bytes": around.memory_bytes,
            }
            forked = await zygote.fork({**packet, **where}, (control_theirs, data_theirs))
        except BaseException as error:
            control.close()
            gateway_end.close()
            group.remove()
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, ProcessError):
                raise ProcessError(f"environment {self.name}: {error}") from None
            if isinstance(error, OSError):
                raise ProcessError(f"no place for a session of {self.name}: {error}") from None
            raise
        finally:
            control_theirs.close()
            data_theirs.close()
        return Acceptor(forked, control, folder, group, on_packet), gateway_end

    def _visible(self, environment: Environment, gpus: Sequence[int]) -> dict[str, str]:
        """The variables that show a session its lease's devices and no others."""
        around = self._around
        listed = ",".join(around.gpus[gpu].uuid_text if around.cuda else str(gpu) for gpu in gpus)
        return _hidden_devices() | dict.fromkeys(VISIBLE[environment.backend], listed)

    def _grant(self, environment: Environment, session: "Session") -> list[float]:
        """On real GPUs: all of the lease's memory that no other session has, as parts of the GPUs.

        Raises ProcessError if there is none.
        """
        if not self._around.cuda or environment.backend != "cuda":
            return []
        fractions = []
        for gpu, quota in zip(session.lease.placement.gpus, session.lease.quotas, strict=True):
            granted = quota.grant(session.session_id, quota.free, quota.free)
            if not granted:
                raise ProcessError("other processes have all memory of this lease: end one, or take a lease of its own")
            fractions.append(granted / self._around.gpus[gpu].memory_bytes)
        return fractions

    def _log(self, packet: Packet, _: FileIO | None) -> None:
        if packet.get("op") == "log":
            _log.info("environment %s: %s", self.name, str(packet.get("line")))


class Environments:
    """All environments of the appliance."""

    def __init__(self, servers: Sequence[EnvironmentServer]) -> None:
        self.servers = servers
        self._keepers: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Returns when each one is proven, or has failed."""
        await asyncio.gather(*(server.start() for server in self.servers))
        self._keepers = [asyncio.create_task(server.keep()) for server in self.servers]

    async def stop(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.gather(*(server.stop() for server in self.servers))

    def alive(self) -> list[Environment]:
        """Those that serve sessions now, or are about to again."""
        return [server.environment for server in self.servers if server.environment is not None]

    def states(self) -> list[EnvironmentState]:
        """For the health checks."""
        return [
            EnvironmentState(
                name=server.name,
                description=describe(server.environment) if server.environment else "",
                problem=server.problem,
                level=server.isolation.get("level", ""),
                lacks=server.isolation.get("lacks", ()),
            )
            for server in self.servers
        ]

    def choose(
        self, name: str, backends: Sequence[str], theirs: Mapping[str, str], *, allow_skew: bool
    ) -> tuple[Environment, Launch]:
        """The environment for a session, and what starts it. `theirs` are the client's versions.

        Raises NoEnvironmentError.
        """
        named = [server for server in self.servers if name in ("", server.name)]
        if not named:
            raise NoEnvironmentError(f"this appliance has no environment {name!r}; {self._offered()}")
        usable = [(server, server.environment) for server in named if server.environment is not None]
        if not usable:
            problems = "; ".join(f"{server.name}: {server.problem}" for server in named)
            raise NoEnvironmentError(f"no environment of this appliance works ({problems}); see `remotegpu health`")
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
        return f"there are {listed}" if listed else "and none of the others works; see `remotegpu health`"


def make_environments(
    settings: Settings,
    backend: Backend,
    hardware: Hardware,
    uids: Uids,
    staging: Staging,
    counters: Counters,
    hidden: Sequence[Path],
) -> Environments:
    cuda = backend.name == "cuda"
    around = Surroundings(
        packages=stage_packages(staging.folder("offload") / "python"),
        scratch=staging.folder("sessions"),
        hidden=hidden,
        variables=backend.environment(0) if cuda else {},
        gpus=hardware.snapshot.gpus,
        cuda=cuda,
        memory_bytes=settings.offload_memory_bytes or half_of_memory(),
        uids=uids,
        cgroups=Cgroups(),
        counters=counters,
    )
    return Environments([EnvironmentServer(option, around) for option in settings.offload])


def describe(environment: Environment) -> str:
    """One line for people."""
    packages = "".join(f", {name} {version}" for name, version in sorted(environment.packages.items()))
    devices = f" ({', '.join(environment.devices)})" if environment.devices else ""
    return f"{environment.backend}{devices}, Python {environment.python}{packages}"


def stage_packages(folder: Path) -> Path:
    """Copies of what acceptors import of ours, where every user can read them: `folder` for PYTHONPATH."""
    import cloudpickle  # noqa: PLC0415 (only for its place)

    base = Path(remotegpu.__file__).parent
    # `offload` there is the old name of what is copied last.
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
    """Of this machine, in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _hidden_devices() -> dict[str, str]:
    """Variables with which a process sees no accelerator at all."""
    return {name: "" for names in VISIBLE.values() for name in names}
