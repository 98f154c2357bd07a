"""Starts a software appliance for one run, on free ports of this machine, and ends it with the run."""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Final

from remotegpu.api.modes import Profile
from remotegpu.api.names import SOFTGPU_MEMORY_ENV
from remotegpu.api.quantities import Ask, QuantityError, parse_memory
from remotegpu.cli import exits
from remotegpu.cli.run.child import stop_if_interrupted

_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 10.0


def software_memory(ask: Ask, profile: Profile = Profile.NORMAL) -> int:
    """Returns the bytes of each GPU: from the environment or the profile, but enough for the share. Raises CliError."""
    try:
        given = parse_memory(os.environ.get(SOFTGPU_MEMORY_ENV) or str(profile.memory_bytes))
    except QuantityError as error:
        raise exits.CliError(exits.USAGE, f"{SOFTGPU_MEMORY_ENV}: {error}") from None
    return max(given, ask.memory_bytes)


@contextlib.contextmanager
def local_appliance(
    ask: Ask, *options: str, profile: Profile = Profile.NORMAL, environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Yields the endpoint of a software appliance with room for `ask`. It ends with the block or with this process."""
    ready_ours, ready_theirs = os.pipe()
    alive_theirs, alive_ours = os.pipe()
    command = [sys.executable, "-m", "remotegpu.cli", "appliance", "--backend", "software", "--listen", "127.0.0.1:0"]
    command += ["--gpus", str(ask.count), "--memory", str(software_memory(ask, profile)), "--profile", str(profile)]
    # Landlock is not required, since the appliance has only one user.
    command += ["--metrics-port", "0", "--quiet", "--landlock", "warn"]
    command += ["--drain-seconds", "0", "--ready-fd", str(ready_theirs), "--parent-fd", str(alive_theirs), *options]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        pass_fds=(ready_theirs, alive_theirs),
        start_new_session=True,
        env=os.environ | dict(environment or {}),
    )
    os.close(ready_theirs)
    os.close(alive_theirs)
    try:
        yield _wait_until_ready(process, ready_ours)
    finally:
        os.close(ready_ours)
        os.close(alive_ours)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], ready: int) -> str:
    deadline = time.monotonic() + _START_SECONDS
    line = b""
    while not line.endswith(b"\n"):
        stop_if_interrupted()
        if time.monotonic() > deadline:
            process.kill()
            raise exits.CliError(
                exits.SOFTWARE, f"the local software appliance was not ready after {_START_SECONDS:.0f} s"
            )
        readable, _, _ = select.select([ready], [], [], 0.1)
        if readable:
            piece = os.read(ready, 4096)
            if not piece:
                # The appliance has printed its error on stderr.
                raise exits.CliError(
                    process.wait() or exits.SOFTWARE, "the local software appliance did not start, see above"
                )
            line += piece
    return str(json.loads(line)["endpoint"])
