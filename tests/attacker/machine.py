"""Attacks by another user of the machine on an appliance without `--tokens`, as a person starts one for himself.

The attacker's program is one of user id 65534, so these need root.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from attacker.acceptors import listening_socket
from attacker.attack import Control, Outcome, launcher
from support.stand_in import StandIn, make_dist

from remotegpu.api.quantities import Ask
from remotegpu.cli.run.local import local_appliance

#: The start of the attacker's program. It imports all that it needs of ours: the checkout may be root's alone.
STRANGER = """
import json, os, socket, sys
from remotegpu.api.failures import ApplianceError
from remotegpu.rpc.client import Access, ApplianceClient, parse_endpoint
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
got, code = "", "OK"
try:
{statements}
except ApplianceError as error:
    code = error.failure.name
except OSError as error:
    code = type(error).__name__
print(json.dumps([got, code]))
"""


@dataclass
class Machine:
    """`folder` is the user's folder for what runs (XDG_RUNTIME_DIR)."""

    folder: Path
    control: Control | None
    appliance: StandIn


@contextlib.contextmanager
def world(control: Control | None) -> Iterator[Machine]:
    if os.geteuid() != 0:
        pytest.skip("another user's program is started by root")
    with tempfile.TemporaryDirectory(prefix="remotegpu-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        environment = {"XDG_RUNTIME_DIR": name}
        with StandIn(make_dist(folder / "dist"), env=environment, prefix=launcher(control)) as it:
            yield Machine(folder, control, it)


def _as_stranger(*statements: str) -> tuple[str, str]:
    """Runs the statements as another user. Returns the `got` that they leave, and the error's name if they fail."""
    code = STRANGER.format(statements="\n".join(f"    {each}" for each in statements))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    got, code = json.loads(done.stdout)
    return str(got), str(code)


def _inventory(endpoint: str) -> tuple[str, str]:
    return _as_stranger(
        f"client = ApplianceClient(parse_endpoint({endpoint!r}), Access(''), call_seconds=20)",
        "got = str(client.inventory())",
    )


def look_at_an_appliance(world: Machine) -> Outcome:
    """Calls the port that every user finds in /proc/net/tcp."""
    got, code = _inventory(world.appliance.endpoint)
    return Outcome("Stand-in GPU" in got, code)


def look_at_the_appliance_of_a_run(world: Machine) -> Outcome:
    """Calls the appliance that `remotegpu run` starts for itself."""
    options = () if world.control is None else ("--anybody",)
    with local_appliance(Ask(memory_bytes=1 << 30), *options) as endpoint:
        got, code = _inventory(endpoint)
    return Outcome("software" in got, code)


def token_of_another_user(world: Machine) -> Outcome:
    path = world.folder / "remotegpu" / world.appliance.endpoint
    canary = path.read_text().strip()
    assert len(canary) >= 32
    got, code = _as_stranger(f"got = open({str(path)!r}).read()")
    return Outcome(canary in got, code)


def socket_of_the_control_service(world: Machine) -> Outcome:
    """Bypasses the gateway, which counts strangers and names them."""
    path = listening_socket(world.appliance.process.pid)
    got, code = _as_stranger(
        "one = socket.socket(socket.AF_UNIX)", f"one.connect({path!r})", "one.settimeout(5)", "got = one.recv(9).hex()"
    )
    return Outcome(got != "", code)
