"""Detects hardware at the start: a snapshot of the driver, and a self-test of each GPU, all in separate processes."""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remotegpu.api.names import LOG_ENV, VISIBLE_DEVICES_ENV
from remotegpu.appliance.backends.base import Backend, BackendError
from remotegpu.appliance.machine.exits import exit_text
from remotegpu.appliance.shares.views import PhysicalGpu

# Long enough for a driver that starts slowly. A broken driver may never return.
_PROBE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    driver_version: int
    table_hash: int
    gpus: list[PhysicalGpu]
    landlock: bool = False  # the kernel has Landlock, which isolates workers of one uid


@dataclass(frozen=True, slots=True)
class SelfTest:
    """The result of a self-test: the memory of one context, or a problem."""

    overhead_bytes: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Hardware:
    """GPUs and the results of their self-tests, in the same order."""

    snapshot: Snapshot
    tests: list[SelfTest]

    @property
    def overhead_bytes(self) -> int:
        return max((test.overhead_bytes for test in self.tests), default=0)


def worker_environment(backend: Backend, overhead_bytes: int) -> dict[str, str]:
    """Returns the environment of a worker. It is an allow-list, so no token or path of the appliance gets into it."""
    environment = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", **backend.environment(overhead_bytes)}
    if level := os.environ.get(LOG_ENV):
        environment[LOG_ENV] = level
    return environment


async def probe(backend: Backend, worker: Path, *, test: bool) -> Hardware:
    snapshot = await take_snapshot(worker, backend.driver, worker_environment(backend, 0))
    if not test:
        return Hardware(snapshot, [SelfTest() for _ in snapshot.gpus])
    tests = await asyncio.gather(*(self_test(backend, gpu.uuid_text) for gpu in snapshot.gpus))
    return Hardware(snapshot, list(tests))


async def take_snapshot(worker: Path, driver: Path, environment: Mapping[str, str]) -> Snapshot:
    code, out = await _output([str(worker), "--snapshot", "--driver", str(driver)], environment)
    if code != 0:
        raise BackendError(f"{driver} cannot be used ({exit_text(code)}): the worker's own message stands above")
    try:
        return parse_snapshot(out)
    except (ValueError, KeyError, TypeError) as error:
        raise BackendError(
            f"the worker {worker} described the GPUs in an unknown way: {error!r}; build it again"
        ) from None


def parse_snapshot(text: str) -> Snapshot:
    found = json.loads(text)
    gpus = [
        PhysicalGpu(
            name=str(device["name"]),
            uuid=bytes.fromhex(device["uuid"]),
            memory_bytes=int(device["memory_bytes"]),
            pci=tuple(device["pci"]),
            attributes=_numbers(device["attributes"]),
            peers={int(place): _numbers(attributes) for place, attributes in device.get("peers", {}).items()},
        )
        for device in found["devices"]
    ]
    return Snapshot(int(found["driver_version"]), int(found.get("table_hash", 0)), gpus, bool(found.get("landlock")))


def _numbers(values: dict[str, Any]) -> dict[int, int]:
    return {int(key): int(value) for key, value in values.items()}


async def self_test(backend: Backend, uuid: str) -> SelfTest:
    """Runs `selftest` on one GPU in a separate process."""
    # No tenant's code runs in this process, so it gets our environment, which Python may need to start.
    environment = {**os.environ, **worker_environment(backend, 0)}
    environment |= {"LD_LIBRARY_PATH": str(backend.driver.parent), VISIBLE_DEVICES_ENV: uuid}
    command = [sys.executable, "-m", "remotegpu.appliance.gpus.selftest", *([] if backend.computes else ["--null"])]
    code, out = await _output(command, environment)
    try:
        result: dict[str, Any] = json.loads(out)
        if "error" in result:
            return SelfTest(problem=f"self-test: {result['error']}")
        return SelfTest(overhead_bytes=int(result["overhead_bytes"]))
    except (ValueError, KeyError):
        return SelfTest(problem=f"self-test: it ended without a result ({exit_text(code)})")


async def _output(command: list[str], environment: Mapping[str, str]) -> tuple[int, str]:
    try:
        process = await asyncio.create_subprocess_exec(
            *command, env=dict(environment), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
        )
    except OSError as error:
        raise BackendError(f"{command[0]} did not start: {error.strerror or error}") from None
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            out, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return -9, ""
    assert process.returncode is not None
    return process.returncode, out.decode(errors="replace")
