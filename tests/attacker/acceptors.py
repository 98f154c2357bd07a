"""Attacks from inside an acceptor of offload, whose tenant runs any Python there.

The appliance and its sessions are one user without namespaces, as in a `restricted` pod: the weakest way in which
sessions are kept apart. `offload/tests/core/test_sandbox.py` tries the others, too.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from attacker.attack import Control, How, Outcome, launcher
from offload_appliance import AS_STRANGER, lease, offload_appliance, session
from offload_hostile import hostile_environment, run
from support.stand_in import StandIn
from support.system import open_files

from remotegpu.api.quantities import Ask
from remotegpu.rpc.client import Access
from remotegpu_offload.wire.errors import LostError
from remotegpu_offload.wire.peer import Peer

TOKEN = "token-of-alice"
CANARY_VARIABLE = "REMOTEGPU_TEST_CANARY"
#: The zygote's program executes this first, to leave out a defence.
PATCHES = {
    "files": "from remotegpu_offload.acceptor import restrictions\nrestrictions.give_up_files = lambda *a, **k: True\n",
    "calls": "from remotegpu_offload.acceptor import restrictions\nrestrictions.give_up_calls = lambda **k: None\n",
    "others": """
from remotegpu_offload.acceptor import restrictions, syscalls
restrictions.give_up_files = lambda *a, **k: True
syscalls.set_dumpable = lambda wanted: None
""",
    "files-and-calls": """
from remotegpu_offload.acceptor import restrictions
restrictions.give_up_files = lambda *a, **k: True
restrictions.give_up_calls = lambda **k: None
""",
}


@dataclass
class Acceptors:
    """The world of these attacks. `folder` is the appliance's own."""

    appliance: StandIn
    folder: Path
    user: int
    variable: str
    control: Control | None

    @contextlib.contextmanager
    def session(self) -> Iterator[Peer]:
        with lease(self.appliance, Ask(milli_per_gpu=100)) as tenant, session(tenant) as peer:
            yield peer


@contextlib.contextmanager
def world(control: Control | None) -> Iterator[Acceptors]:
    # Not below pytest's own folder, which other users cannot read.
    folder = Path(tempfile.mkdtemp(prefix="remotegpu-test-"))
    folder.chmod(0o755)
    user = 60_000 + os.getpid() % 3000 if os.geteuid() == 0 else os.geteuid()
    (folder / "tokens").write_text(f"[admin]\nalice:{TOKEN}\n")
    (folder / "packages").mkdir()
    (folder / "packages" / "installed.py").write_text("value = 'as it was'\n")
    for path in (folder / "tokens", folder / "packages", folder / "packages" / "installed.py"):
        path.chmod(0o700 if path.is_dir() else 0o600)
        if os.geteuid() == 0:
            os.chown(path, user, user)
    variable = secrets.token_hex(16)
    patch = PATCHES.get(control.name, "") if control is not None and control.how is How.PATCH else ""
    try:
        first = f"sys.path.append({str(folder / 'packages')!r})\n{patch}"
        environment = hostile_environment(folder / "hostile", alone=True, first=first)
        with offload_appliance(
            folder,
            "--tokens",
            str(folder / "tokens"),
            environments=(environment,),
            access=Access(TOKEN),
            stranger=user if os.geteuid() == 0 else None,
            uids=False,
            env={CANARY_VARIABLE: variable},
            prefix=() if patch else launcher(control),
        ) as it:
            yield Acceptors(it, folder, user, variable, control)
    finally:
        shutil.rmtree(folder)


_TRY = """
value = ''
try:
{statements}
    code = 'OK'
except Exception as error:
    code = type(error).__name__
value = [value, code]
"""


def _tried(peer: Peer, statements: str) -> tuple[str, str]:
    """Runs the statements. Returns the `value` that they leave, and the name of the exception if they fail."""
    answer = run(peer, _TRY.format(statements=textwrap.indent(statements, "    ")))
    return str(answer[0]), str(answer[1])


def token_file(world: Acceptors) -> Outcome:
    with world.session() as mallory:
        got, code = _tried(mallory, f"value = open({str(world.folder / 'tokens')!r}).read()")
    return Outcome(TOKEN in got, code)


def folder_of_another_session(world: Acceptors) -> Outcome:
    canary = secrets.token_hex(8)
    with world.session() as alice, world.session() as mallory:
        folder = run(alice, f"open('mine', 'w').write({canary!r}); value = str(session.folder)")
        got, code = _tried(mallory, f"value = open({folder + '/mine'!r}).read()")
    return Outcome(got == canary, code)


def memory_of_another_session(world: Acceptors) -> Outcome:
    canary = secrets.token_hex(8)
    with world.session() as alice, world.session() as mallory:
        keep = f"import ctypes, os, builtins; builtins.kept = ctypes.create_string_buffer({canary.encode()!r})\n"
        process, address = run(alice, keep + "value = [os.getpid(), ctypes.addressof(builtins.kept)]")
        reading = f"memory = open('/proc/{process}/mem', 'rb', buffering=0)\nmemory.seek({address})\n"
        got, code = _tried(mallory, reading + "value = memory.read(16).decode()")
    return Outcome(got == canary, code)


def kill_another_session(world: Acceptors) -> Outcome:
    with world.session() as alice, world.session() as mallory:
        process = run(alice, "import os; value = os.getpid()")
        _, code = _tried(mallory, f"import os; os.kill({process}, 9)")
        try:
            return Outcome(run(alice, "value = 'alive'") != "alive", code)
        except LostError:
            return Outcome(True, code)


def network(world: Acceptors) -> Outcome:
    """The appliance's own control port; the canary is a connection."""
    port = int(world.appliance.endpoint.rpartition(":")[2])
    with world.session() as mallory:
        got, code = _tried(
            mallory, f"import socket\nvalue = socket.create_connection(('127.0.0.1', {port}), 5) and 'connected'"
        )
    return Outcome(got == "connected", code)


def socket_of_the_appliance(world: Acceptors) -> Outcome:
    """The socket on which calls arrive, behind the gateway and its limits."""
    with world.session() as mallory:
        name = listening_socket(world.appliance.process.pid)
        code = f"""
import socket
one = socket.socket(socket.AF_UNIX)
one.connect({name!r})
one.settimeout(5)
value = one.recv(9).hex()
"""
        got, refused = _tried(mallory, code)
    return Outcome(got != "", refused)


def listening_socket(process: int) -> str:
    """The path of the Unix socket on which the control service listens."""
    lines = Path(f"/proc/{process}/net/unix").read_text().splitlines()
    inodes = set(open_files(process).values())
    for line in lines[1:]:
        words = line.split()
        if len(words) == 8 and f"socket:[{words[6]}]" in inodes and words[7].endswith("/socket"):
            return words[7]
    raise AssertionError("the appliance listens on no Unix socket")


def variables_of_the_appliance(world: Acceptors) -> Outcome:
    """Searches the session's own memory, which began as its zygote's, for the appliance's variable."""
    half, rest = world.variable[:16], world.variable[16:]
    code = f"""
import ctypes, re
for line in open("/proc/self/maps"):
    start, end, rights = re.match("([0-9a-f]+)-([0-9a-f]+) (....)", line).groups()
    if rights.startswith("rw"):
        start, end = int(start, 16), int(end, 16)
        found = re.search(b"{half}([0-9a-f]{{16}})", (ctypes.c_char * (end - start)).from_address(start))
        value = found.group(1).decode() if found else value
"""
    with world.session() as mallory:
        got, code = _tried(mallory, code)
    return Outcome(got == rest, "nothing" if code == "OK" and not got else code)


def packages_of_the_environment(world: Acceptors) -> Outcome:
    """Mallory overwrites a package that the appliance's user installed. Alice imports it afterwards."""
    installed = str(world.folder / "packages" / "installed.py")
    with world.session() as mallory:
        _, code = _tried(mallory, f"open({installed!r}, 'w').write('value = \"mine\"')")
    with world.session() as alice:
        got = run(alice, "import installed; value = installed.value")
    return Outcome(got != "as it was", code)


def fork_bomb(world: Acceptors) -> Outcome:
    """100 processes that stay. Alice's own session starts next to them."""
    bomb = """
import os, signal
for _ in range(100):
    if os.fork() == 0:
        signal.alarm(30)
        signal.pause()
        os._exit(0)
value = 'forked'
"""
    with world.session() as mallory:
        got, code = _tried(mallory, bomb)
        with world.session() as alice:
            assert run(alice, "value = 1") == 1
    return Outcome(got == "forked", code)


def memory_beyond_the_share(world: Acceptors) -> Outcome:
    """Twice a session's limit of host memory. The appliance runs as root, since cgroups need that."""
    with tempfile.TemporaryDirectory(prefix="remotegpu-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        environment = hostile_environment(folder / "hostile")
        with offload_appliance(
            folder, "--offload-memory", "256MiB", environments=(environment,), prefix=launcher(world.control)
        ) as it, lease(it) as tenant, session(tenant) as mallory:  # fmt: skip
            isolation = next(c.message for c in it.client.health().checks if c.name == "environment hostile: isolation")
            if "cgroups (" in isolation or "cgroups" not in isolation:
                pytest.skip(f"no cgroup can be written here: {isolation}")
            try:
                got = run(mallory, "kept = bytearray(b'x') * (512 << 20); value = len(kept)")
            except LostError:
                return Outcome(False, "killed")
            return Outcome(got == 512 << 20, "OK")


def key_of_another_session(world: Acceptors) -> Outcome:
    """The key is in the user's keyring, which all of its processes share. Alice's program could have put it there."""
    canary, name = secrets.token_hex(8), f"remotegpu-test-{secrets.token_hex(4)}"
    user_keyring = -4
    key = f"b'user', {name.encode()!r}, {canary.encode()!r}, {len(canary)}, {user_keyring}"
    put = f"import ctypes; ctypes.CDLL(None).syscall(248, {key})"
    _as(world.user, put)
    read = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
key = libc.syscall(250, 10, {user_keyring}, b"user", {name.encode()!r}, 0)
buffer = ctypes.create_string_buffer(64)
count = libc.syscall(250, 11, key, buffer, 64) if key > 0 else -1
if count < 0:
    raise OSError(ctypes.get_errno(), "no key")
value = buffer.value.decode()
"""
    with world.session() as mallory:
        got, code = _tried(mallory, read)
    return Outcome(got == canary, code)


def _as(user: int, code: str) -> None:
    stranger = (sys.executable, str(AS_STRANGER), str(user)) if os.geteuid() == 0 else ()
    subprocess.run([*stranger, sys.executable, "-c", code], check=True)
