"""A hostile client: what its code in an acceptor cannot do, for each way in which sessions are kept apart."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from offload_appliance import lease, offload_appliance, session
from offload_hostile import hostile_environment, run
from support.stand_in import StandIn
from support.system import DIST, until

from remotegpu.rpc.client import Access
from remotegpu_offload.wire.errors import LostError
from remotegpu_offload.wire.frames import Service
from remotegpu_offload.wire.peer import Peer

TOKEN = "the appliance's token"
_ROOT = os.geteuid() == 0
# What `appliance init` makes beside the tokens.
PRIVATE = ("admin.token", "ca.key")
# As docs/offload.md has it.
_ETC = (
    "alternatives", "ca-certificates", "ca-certificates.conf", "debian_version", "fonts", "gai.conf", "group",
    "host.conf", "hostname", "hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "localtime",
    "lsb-release", "magic", "mime.types", "nsswitch.conf", "OpenCL", "os-release", "passwd", "protocols",
    "resolv.conf", "services", "ssl/cert.pem", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone", "vulkan",
    "xml",
)  # fmt: skip
LISTED = ("/usr", "/proc", "/sys", "/dev", *(f"/etc/{name}" for name in _ETC))


@dataclass(frozen=True)
class Way:
    """How the sessions of an appliance are kept apart."""

    appliance: StandIn
    stranger: bool
    alone: bool
    secrets: Path


@pytest.fixture(
    scope="module",
    params=["root", "root, no namespaces", "user", "user, no namespaces"] if _ROOT else ["user", "user, no namespaces"],
)
def way(request: pytest.FixtureRequest) -> Iterator[Way]:
    # Not below pytest's own folder, which other users cannot read.
    folder = Path(tempfile.mkdtemp(prefix="remotegpu-test-"))
    folder.chmod(0o755)
    alone, stranger = "no namespaces" in request.param, "user" in request.param
    user = 60_000 + os.getpid() % 3000 if stranger else 0
    tokens = folder / "tokens"
    tokens.write_text(f"alice:{TOKEN}\n")
    # As `appliance init` leaves them.
    for name in PRIVATE:
        (folder / name).write_text("a secret of the appliance")
    # The service's home, and what its administrator lets sessions read.
    (folder / "home" / ".ssh").mkdir(parents=True)
    (folder / "home" / ".ssh" / "id_ed25519").write_text("a secret of the service")
    (folder / "home" / "notes").write_text("for everybody here")
    (folder / "data").mkdir()
    (folder / "data" / "set").write_text("a data set")
    for path in (tokens, *(folder / name for name in PRIVATE), folder / "home" / ".ssh" / "id_ed25519"):
        path.chmod(0o600)
        if _ROOT:
            os.chown(path, user, user)
    # A folder where anybody may write, if the kernel's usual rules were all.
    (folder / "open").mkdir()
    (folder / "open").chmod(0o777)
    try:
        environment = hostile_environment(folder / "hostile", alone=alone)
        options = ("--tokens", str(tokens), "--gpus", "2", "--readable", str(folder / "data"))
        with offload_appliance(
            folder,
            *options,
            environments=(environment,),
            access=Access(token=TOKEN),
            env={"HOME": str(folder / "home")},
            stranger=user if _ROOT and (stranger or alone) else None,
        ) as it:
            yield Way(it, stranger, alone, tokens)
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def hostile(way: Way) -> Iterator[Peer]:
    with lease(way.appliance) as tenant, session(tenant) as peer:
        yield peer


def refused(peer: Peer, statement: str) -> str:
    """The name of the exception with which the statement fails; a failed test if it does not."""
    indented = "\n    ".join(statement.splitlines())
    code = f"""
try:
    {indented}
    value = "nothing was refused"
except Exception as error:
    value = type(error).__name__
"""
    answer = run(peer, code)
    assert answer != "nothing was refused", statement
    return str(answer)


def test_the_way_is_what_it_is_called(way: Way, hostile: Peer) -> None:
    """Otherwise the tests below would prove something else."""
    checks = {check.name: check.message for check in way.appliance.client.health().checks}
    isolation = checks["environment hostile: isolation"]
    assert ("by alone" in isolation) is way.alone, isolation
    assert run(hostile, "import os; value = os.getpid()") < 10 or way.alone
    uid = run(hostile, "import os; value = os.getuid()")
    appliance_uid = Path(f"/proc/{way.appliance.process.pid}").stat().st_uid
    assert uid != 0 or not _ROOT
    assert (uid == appliance_uid) is (way.stranger or not _ROOT)


def test_it_cannot_read_the_token(way: Way, hostile: Peer) -> None:
    assert way.secrets.read_text() == f"alice:{TOKEN}\n"
    code = f"""
try:
    value = open({str(way.secrets)!r}).read()
except OSError:
    value = ""
"""
    assert TOKEN not in run(hostile, code)
    # Nor in the variables and the memory that it has from its zygote. The patterns are not what they find.
    code = """
import ctypes, os, re
planted = bytes(reversed(b"detnalp:ecila"))
found = {"ali[c]e:planted": 0, "ali[c]e:the appliance": 0}
for line in open("/proc/self/maps"):
    start, end, rights = re.match("([0-9a-f]+)-([0-9a-f]+) (....)", line).groups()
    if rights.startswith("rw"):
        start, end = int(start, 16), int(end, 16)
        data = (ctypes.c_char * (end - start)).from_address(start)
        for pattern in found:
            found[pattern] += len(re.findall(pattern.encode(), data))
value = list(found.values()) + [sum("appliance's" in text for text in os.environ.values())]
"""
    planted, secret, variables = run(hostile, code)
    assert planted > 0
    assert (secret, variables) == (0, 0)


def test_it_reads_nothing_outside_of_the_list(way: Way, hostile: Peer) -> None:
    """A walk over the whole file system, whatever the appliance's user may read. To the kernel's rules the files of one
    folder are alike, so a few of each are tried; and the secrets by name."""
    folder = way.secrets.parent
    interpreter = run(hostile, "import sys; value = [*sys.path, sys.prefix, sys.base_prefix, str(session.folder)]")
    allowed = [os.path.realpath(path) for path in (*LISTED, *interpreter, folder / "data", DIST) if path]
    named = [str(folder / name) for name in (*PRIVATE, "tokens", "home/.ssh/id_ed25519", "home/notes")]
    code = f"""
import os
def place(path):
    # What is mounted at two places is one to the kernel's rules.
    try:
        about = os.lstat(path)
        return about.st_dev, about.st_ino
    except OSError:
        return None
allowed, value = {{place(path) for path in {allowed!r}}} | {{None}}, []
# Libraries that it has loaded may have another name elsewhere.
allowed |= {{place(line.split()[-1]) for line in open("/proc/self/maps") if ".so" in line}}
todo, tried = ["/"], {named!r}
while todo:
    try:
        entries = list(os.scandir(todo.pop()))
    except OSError:
        continue
    todo += [e.path for e in entries if e.is_dir(follow_symlinks=False) and place(e.path) not in allowed]
    tried += [e.path for e in entries if e.is_file(follow_symlinks=False)][:8]
for path in tried:
    try:
        if place(path) not in allowed:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
            value.append(path)
    except OSError:
        pass
value = [len(tried), value[:50]]
"""
    tried, read = run(hostile, code, timeout=300)
    assert tried > 1000
    assert read == []
    # What it may read it does.
    assert run(hostile, f"value = open({str(folder / 'data' / 'set')!r}).read()") == "a data set"


def test_it_sees_no_other_session(way: Way, hostile: Peer) -> None:
    with lease(way.appliance) as tenant, session(tenant) as victim:
        secret = secrets.token_hex(8)
        folder = run(victim, f"open('mine', 'w').write({secret!r}); value = str(session.folder)")
        run(victim, f"import os; os.environ['VICTIM'] = {secret!r}; kept = {secret!r}")
        code = f"""
import os
seen = []
for folder in ({folder!r}, "/tmp", "/var/tmp", "/dev/shm", *[os.path.dirname({folder!r})] * {way.alone!r}):
    for path, _, names in os.walk(folder):
        # To open a pipe that somebody left would wait for its other end.
        for name in filter(lambda name: os.path.isfile(os.path.join(path, name)), names):
            try:
                seen.append(open(os.path.join(path, name)).read(100))
            except (OSError, UnicodeDecodeError):
                pass
for number in filter(str.isdigit, os.listdir("/proc")):
    if int(number) not in (os.getpid(), 1) or {way.alone!r} and int(number) != os.getpid():
        for name in ("environ", "mem", "cwd/mine", "root/etc/hostname", "maps"):
            try:
                if open(f"/proc/{{number}}/{{name}}", "rb").read(1):
                    seen.append(f"{{number}} {{name}} of {secret}")
            except OSError:
                pass
value = [text for text in seen if {secret!r} in text]
"""
        assert run(hostile, code) == []
        # The victim's is still there: it was looked for in the right place.
        assert run(victim, "value = open('mine').read()") == secret


def test_it_cannot_reach_anybody(way: Way, hostile: Peer) -> None:
    port = int(way.appliance.endpoint.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), 20):
        pass
    tcp = "import socket; socket.create_connection(('127.0.0.1', {}), 5)"
    refused(hostile, tcp.format(port))
    refused(hostile, tcp.format(port + 1))
    refused(hostile, "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)")
    refused(hostile, "import socket; socket.socket(40, socket.SOCK_STREAM)")
    with socket.socket(socket.AF_UNIX) as listening:
        name = f"\0remotegpu-test-{secrets.token_hex(8)}"
        listening.bind(name)
        listening.listen()
        refused(hostile, f"import socket; socket.socket(socket.AF_UNIX).connect({name!r})")
    path = way.secrets.with_name("open") / "socket"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        path.chmod(0o777)
        listening.listen()
        listening.settimeout(0)
        if way.alone:
            refused(hostile, f"import socket; socket.socket(socket.AF_UNIX).connect({str(path)!r})")
        path.unlink()


def test_it_cannot_touch_other_processes(way: Way, hostile: Peer) -> None:
    appliance = way.appliance.process.pid
    libc = "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
    for number in (appliance, 1):
        attached = run(hostile, libc + f"value = libc.ptrace(16, {number}, 0, 0)")
        assert attached == -1
        seized = run(hostile, libc + f"value = libc.ptrace(0x4206, {number}, 0, 0)")
        assert seized == -1
        reading = f"""
buffer = ctypes.create_string_buffer(8)
class Piece(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))
here, there = Piece(ctypes.addressof(buffer), 8), Piece(0x400000, 8)
value = libc.process_vm_readv({number}, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
"""
        assert run(hostile, libc + reading) == -1
    refused(hostile, f"import os; os.kill({appliance}, 0)")
    parent = run(hostile, "import os; value = os.getppid()")
    if way.alone:
        refused(hostile, f"import os; os.kill({parent}, 9)")
        refused(hostile, "import os; os.kill(-1, 9)")
    else:
        # Its keeper is the first of its own processes: the kernel lets no signal from inside through.
        run(hostile, f"import os; os.kill({parent}, 9)")
    refused(hostile, f"import resource; resource.prlimit({appliance}, resource.RLIMIT_NOFILE, (1, 1))")
    assert run(hostile, "value = 'alive'") == "alive"
    assert way.appliance.process.poll() is None


def test_it_cannot_change_the_machine(way: Way, hostile: Peer) -> None:
    import remotegpu

    for path in (
        "/etc/remotegpu-test",
        "/usr/remotegpu-test",
        "/remotegpu-test",
        str(way.secrets.with_name("open") / "x"),
    ):
        refused(hostile, f"open({path!r}, 'w')")
    refused(hostile, f"open({remotegpu.__file__!r}, 'a')")
    refused(hostile, "import os, sys; open(os.path.join(sys.prefix, 'remotegpu-test'), 'w')")
    refused(hostile, f"import os; os.unlink({str(way.secrets)!r})")
    refused(hostile, "import os; os.setuid(0)")
    refused(hostile, "import os; os.chroot('/')")
    refused(hostile, "import os; os.mknod('disk', 0o60600, os.makedev(8, 0))")
    libc = "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
    for call in (
        "mount(b'tmpfs', b'/', b'tmpfs', 0, None)",
        "umount2(b'/tmp', 2)",
        "unshare(0x10000000)",
        "setns(0, 0)",
        "sethostname(b'mine', 4)",
        "syscall(435, 0, 0)",
        "syscall(425, 8, ctypes.create_string_buffer(256))",
        "prctl(4, 1, 0, 0, 0) or libc.ptrace(0, 0, 0, 0)",
    ):
        assert run(hostile, libc + f"value = libc.{call}") == -1, call
    # In a folder of its own it does as it likes.
    assert run(hostile, "open('file', 'w').write('x'); import os; os.rename('file', 'other'); value = os.listdir('.')")


def test_it_has_only_its_own_descriptors(way: Way, hostile: Peer) -> None:
    code = """
import os
value = {}
for name in os.listdir("/proc/self/fd"):
    try:
        value[name] = os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        pass
"""
    found = run(hostile, code)
    sockets = [target for target in found.values() if target.startswith("socket:")]
    files = [
        target for target in found.values() if target.startswith("/") and not target.startswith(("/dev/", "/proc/"))
    ]
    # The client's connection, and the way to its keeper or the appliance.
    assert len(sockets) == 2, found
    assert files == [], found


def test_what_it_says_to_the_appliance_counts_for_nothing(way: Way, hostile: Peer) -> None:
    """It finds the socket on which its keeper listens, and lies."""
    code = """
import json, os, socket
for name in os.listdir("/proc/self/fd"):
    try:
        one = socket.socket(fileno=os.dup(int(name)))
        if one.type == socket.SOCK_SEQPACKET:
            for packet in (
                {"op": "unhealthy", "device": 0, "code": 1, "message": "broken"},
                {"op": "grant", "id": 1, "device": 0, "least": 1 << 20, "want": 1 << 29},
                {"op": "ready"}, {"op": "forked", "id": "x", "pid": 1}, {"op": 5},
                {"op": "log", "line": "begin\\x1b[2J\\nERROR" + "x" * 10000},
                {"op": "stats", "commands": -1, "bytes_in": "many"},
            ):
                one.send(json.dumps(packet).encode())
            one.send(b"nonsense")
    except OSError:
        pass
value = True
"""
    with contextlib.suppress(LostError):
        run(hostile, code)
    gpu = way.appliance.gpus[0]
    assert gpu.healthy
    assert gpu.used_bytes == 0
    said = until(lambda: [line for line in way.appliance.log.splitlines() if "begin" in line], 30, "it is in the log")
    assert all(len(line) < 700 and "\x1b" not in line for line in said)
    with lease(way.appliance) as tenant, session(tenant) as other:
        assert run(other, "value = 1") == 1


def _named(mark: str) -> list[int]:
    """Processes of the machine with this name."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and (folder / "comm").read_text().strip() == mark:
                found.append(int(folder.name))
    return found


_RENAME = "import ctypes; ctypes.CDLL(None).prctl(15, {!r}, 0, 0, 0)\n"


def test_nothing_of_it_lives_on(way: Way) -> None:
    mark = f"h{secrets.token_hex(6)}"
    start = (
        _RENAME.format(mark.encode())
        + """
import os, signal, time
value = 0
for _ in range(3):
    try:
        if os.fork() == 0:
            os.setsid()
            for number in range(1, 64):
                try:
                    signal.signal(number, signal.SIG_IGN)
                except (OSError, ValueError):
                    pass
            if os.fork() == 0:
                while True:
                    time.sleep(1000)
            os._exit(0)
        value += 1
    except PermissionError:
        pass
"""
    )
    with lease(way.appliance) as tenant, session(tenant) as peer:
        started = run(peer, start)
        assert started == (0 if way.alone else 3)
        until(lambda: len(_named(mark)) >= (1 if way.alone else 4), 30, "its processes run")
    until(lambda: not _named(mark), 30, "its processes have ended")


def test_a_fork_bomb_goes_off_in_its_own_room(way: Way) -> None:
    mark = f"h{secrets.token_hex(6)}"
    bomb = (
        _RENAME.format(mark.encode())
        + """
import os, signal, time
value = 0
try:
    while value < 5000:
        if os.fork() == 0:
            signal.pause()
            os._exit(0)
        value += 1
except OSError:
    pass
"""
    )
    with lease(way.appliance) as tenant, session(tenant) as peer:
        count = run(peer, bomb)
        assert count <= 1024 if not way.alone else count == 0
        # Others go on.
        with session(tenant) as other:
            assert run(other, "value = 2") == 2
    until(lambda: not _named(mark), 60, "the bomb is cleared away")


@pytest.mark.parametrize(
    "busy",
    [
        "while True: pass",
        "import ctypes; ctypes.PyDLL(None).sleep(100000)",
        "import os, signal; os.kill(os.getpid(), 19)",
    ],
    ids=["loop", "holding the interpreter", "stopped"],
)
def test_it_ends_when_its_lease_does_whatever_it_does(way: Way, busy: str) -> None:
    mark = f"h{secrets.token_hex(6)}"
    with lease(way.appliance) as tenant, session(tenant) as peer:
        run(peer, _RENAME.format(mark.encode()))
        start = f"import threading; threading.Thread(target=lambda: exec({busy!r})).start()"
        peer.notify(Service.APP, {"code": start})
        until(lambda: _named(mark), 30, "it runs")
        assert tenant.holding is not None
        tenant.holding.close()
        until(lambda: not _named(mark), 30, "it has ended")
        assert peer.closed.wait(30)
