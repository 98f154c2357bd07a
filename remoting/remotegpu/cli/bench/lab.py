"""The environment of a measurement: the appliance, the raw TCP peer and the delaying proxy, each on its CPUs."""

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from remotegpu.api import names
from remotegpu.api.modes import Profile
from remotegpu.api.quantities import Ask
from remotegpu.cli import exits
from remotegpu.cli.bench.matrix import Configuration, ends
from remotegpu.cli.bench.report import Run
from remotegpu.cli.run.holding import Wish, held
from remotegpu.cli.run.local import local_appliance
from remotegpu.paths import Dist
from remotegpu.rpc.client import Access, ApplianceClient, Endpoint, parse_endpoint

# The address of the proxy. It has the same ports as the appliance, since the appliance sends its clients the ports.
_FAR_HOST: Final = "127.0.0.2"
_DEMO: Final = Path(__file__).resolve().parents[4] / "examples" / "01-digits" / "train.py"


@dataclass(frozen=True, slots=True)
class Site:
    """An appliance, the access to it, and the address of its raw TCP peer; None without a peer."""

    endpoint: Endpoint
    access: Access
    reference: str | None


@dataclass(frozen=True, slots=True)
class Lab:
    """The built programs, the usable CPUs, and a temporary folder."""

    dist: Dist
    cpus: Sequence[int]
    folder: Path

    @property
    def program(self) -> str:
        return str(self.dist.program("remotegpu-bench"))

    @contextlib.contextmanager
    def site(self, configuration: Configuration, *more: str) -> Iterator[Site]:
        """Starts a software appliance with the options `more`, and a peer, for a configuration."""
        _, far_cpus = ends(configuration.placement, self.cpus)
        access = Access(ca=self._certificate()) if configuration.tls else Access()
        options = ["--cert", str(access.ca), "--key", str(access.ca.with_suffix(".key"))] if access.ca else []
        options += more
        with contextlib.ExitStack() as stack:
            with on_cpus(far_cpus):
                endpoint = parse_endpoint(stack.enter_context(local_appliance(Ask(), *options)))
                local = stack.enter_context(tempfile.TemporaryDirectory())
                where = f"{local}/peer" if configuration.carrier == "auto" else "127.0.0.1:0"
                peer = stack.enter_context(serving(self.program, "tcp-peer", where))
            if not configuration.delay_ms:
                yield Site(endpoint, access, peer)
                return
            ports = [str(endpoint.port), str(_data_port(endpoint, access)), peer.rpartition(":")[2]]
            routes = [f"{_FAR_HOST}:{port}=127.0.0.1:{port}" for port in ports]
            stack.enter_context(serving(self.program, "delay-proxy", str(configuration.delay_ms), *routes))
            yield Site(Endpoint(_FAR_HOST, endpoint.port), access, f"{_FAR_HOST}:{ports[2]}")

    def measure(self, configuration: Configuration, site: Site, *, quick: bool) -> Run:
        options = ["--reference", site.reference] if site.reference else []
        with self._share(site, configuration.carrier) as environment:
            run = self._measure(configuration, environment, *options, quick=quick)
        # Without a peer there is no raw TCP to the same machine to compare with.
        return run if site.reference else Run(run.figures, {}, {})

    def measure_without_wire(self, configuration: Configuration, *, quick: bool) -> Run:
        with held(Wish(profile=str(Profile.NORMAL)), os.environ, self.dist) as share:
            return self._measure(configuration, share.environment, quick=quick)

    def _measure(self, configuration: Configuration, environment: Mapping[str, str], *options: str, quick: bool) -> Run:
        near_cpus, _ = ends(configuration.placement, self.cpus)
        with on_cpus(near_cpus):
            command = [self.program, *(["--quick"] if quick else []), *options]
            measured = json.loads(output_of(command, environment))
        return Run(measured["figures"], measured["before"], measured["after"])

    def demo_step_round_trips(self, site: Site) -> float | None:
        """Returns the round trips of a training step of the first example; None if it or a package is missing."""
        if not _DEMO.exists() or any(importlib.util.find_spec(name) is None for name in ("numba", "sklearn")):
            return None
        trips, steps = [], []
        # The difference of two runs has only steps, without start and module loads.
        for epochs in ("1", "3"):
            stats, result = self.folder / "stats.json", self.folder / "result.json"
            command = [sys.executable, str(_DEMO), "--epochs", epochs, "--json", str(result)]
            with self._share(site, "direct") as environment:
                output_of(command, {**environment, names.STATS_ENV: str(stats), "PYTHONWARNINGS": "ignore"})
            trips.append(json.loads(stats.read_text())["round_trips"])
            steps.append(json.loads(result.read_text())["steps"])
        return float((trips[1] - trips[0]) / (steps[1] - steps[0]))

    @contextlib.contextmanager
    def _share(self, site: Site, carrier: str) -> Iterator[dict[str, str]]:
        """Holds a whole GPU of the appliance, and yields the environment of a program on it."""
        wish = Wish(appliances=(str(site.endpoint),), access=site.access, name=("remotegpu", "bench"))
        with held(wish, os.environ, self.dist) as share:
            yield {**share.environment, names.CARRIER_ENV: carrier}

    def _certificate(self) -> Path:
        """Creates a self-signed certificate, with its key in the same folder. Raises CliError without openssl."""
        certificate = self.folder / "bench.pem"
        if not certificate.exists():
            command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc"]
            command += ["-days", "1", "-subj", "/CN=remotegpu bench", "-out", str(certificate)]
            command += ["-keyout", str(certificate.with_suffix(".key"))]
            command += ["-addext", f"subjectAltName=IP:127.0.0.1,IP:{_FAR_HOST}"]
            if shutil.which("openssl") is None:
                raise exits.CliError(exits.NOT_FOUND, "openssl was not found, which makes the certificate: install it")
            subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        return certificate


@contextlib.contextmanager
def on_cpus(cpus: set[int]) -> Iterator[None]:
    """Pins this thread, and processes that are started in the block, to `cpus`."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def serving(*command: str) -> Iterator[str]:
    """Runs a program that serves until its stdin is closed, and yields its first line. Raises CliError."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if not line:
            raise exits.CliError(exits.SOFTWARE, f"{' '.join(command)} did not start, see above")
        yield line
        # The end of the outer block closes the program's stdin and waits for its end.


def _data_port(endpoint: Endpoint, access: Access) -> int:
    with contextlib.closing(ApplianceClient(endpoint, access)) as client:
        return client.hello().data_port


def output_of(command: Sequence[str], environment: Mapping[str, str]) -> str:
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise exits.CliError(exits.SOFTWARE, f"{' '.join(command)} ended with code {done.returncode}, see above")
    return done.stdout
