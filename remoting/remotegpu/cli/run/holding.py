"""Holds a share for this process, by the program `remotegpu-run --hold`."""

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Final

from remotegpu.api import names
from remotegpu.api.quantities import MILLI_PER_GPU, Ask, format_milli
from remotegpu.cli import exits
from remotegpu.cli.run.child import stop_if_interrupted
from remotegpu.cli.run.plain import PROGRAM
from remotegpu.paths import Dist
from remotegpu.rpc.client import Access

_LOOK_SECONDS: Final = 0.1
# After this time the program is treated as hanging and is killed, which ends the lease too.
_GIVE_BACK_SECONDS: Final = 10.0
_TOKENS: Final = (names.TOKEN_ENV, names.TOKEN_FILE_ENV)
# Variables that options replace, or that are only for the user's program.
_NOT_PASSED: Final = (*_TOKENS, names.CA_ENV, names.SERVER_NAME_ENV, names.CHECK_ENV)


@dataclass(frozen=True, slots=True)
class Wish:
    """A request for a share. Without appliances the share is native: software GPUs inside the program."""

    ask: Ask = field(default_factory=Ask)
    appliances: Sequence[str] = ()
    access: Access = field(default_factory=Access)
    profile: str | None = None  # the profile of native GPUs
    managed_bytes: int | None = None
    wait: bool = True
    name: Sequence[str] = ()  # the command that the appliance shows as the client

    def words(self) -> list[str]:
        """Returns the options of `remotegpu-run`, without the token, since all users can read a command line."""
        ask = self.ask
        words = ["-n", str(ask.count)]
        words += ["-m", str(ask.memory_bytes)] if ask.memory_bytes else ["-p", format_milli(ask.milli_per_gpu)]
        if ask.compute.milli:
            words += ["--compute", format_milli(ask.compute.milli)]
        if ask.compute.limit_milli != MILLI_PER_GPU:
            words += ["--compute-limit", format_milli(ask.compute.limit_milli)]
        if self.managed_bytes is not None:
            words += ["--managed-memory", str(self.managed_bytes)]
        words += [] if self.wait else ["--no-wait"]
        if not self.appliances:
            return [*words, "--native", *(["--profile", self.profile] if self.profile else [])]
        words += ["-a", ",".join(self.appliances)]
        words += [] if self.access.ca is None else ["--ca", str(self.access.ca)]
        words += [] if self.access.server_name is None else ["--server-name", self.access.server_name]
        return [*words, "--", *self.name] if self.name else words


@dataclass(slots=True)
class Held:
    """The environment of a program that uses the share, and the endpoints of its leases."""

    environment: dict[str, str]
    places: dict[str, str]
    """The endpoint of each lease, by the lease's id; a lease may move."""


@contextlib.contextmanager
def held(wish: Wish, base: Mapping[str, str], dist: Dist, tell: Callable[[str], None] | None = None) -> Iterator[Held]:
    """Holds a share until the block ends. `base` is the environment of the program that will use the share.

    Reports the reason for a wait on stderr, or by `tell`, line by line. Raises CliError if the share is not available,
    and StoppedError if a signal asks this process to end while it waits.
    """
    environment = {name: value for name, value in base.items() if name not in _NOT_PASSED}
    if wish.access.token is not None:
        environment[names.TOKEN_ENV] = wish.access.token
    process = subprocess.Popen(
        [dist.program(PROGRAM), "--hold", *wish.words()],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if tell is None else subprocess.PIPE,
        # Ctrl-C must reach only the command, which may use the share while it handles the signal.
        start_new_session=True,
    )
    said: list[str] = []
    readers: list[threading.Thread] = []
    granted, ending = threading.Event(), threading.Event()
    if tell is not None:
        readers.append(threading.Thread(target=_listen, args=(process.stderr, said, tell, granted), daemon=True))
        readers[0].start()
    try:
        first = _first_line(process)
        if first is None:
            code = process.wait()
            if code < 0:
                raise exits.CliError(exits.SOFTWARE, f"{PROGRAM} was ended by signal {-code} before it had the share")
            if tell is None:
                raise exits.SaidError(code)
            readers[0].join()
            raise exits.CliError(code, " ".join(said[-1:]) or f"{PROGRAM} ended with {code}")
        granted.set()
        told = json.loads(first)["environment"]
        changes = {_text(name): None if value is None else _text(value) for name, value in told.items()}
        result = dict(base) | {name: value for name, value in changes.items() if value is not None}
        for name in (*_TOKENS, *(name for name, value in changes.items() if value is None)):
            result.pop(name, None)
        shares = json.loads(result.get(names.SHARES_ENV) or "[]") if wish.appliances else []
        share = Held(result, {each["lease_id"]: each["endpoint"] for each in shares})
        readers.append(threading.Thread(target=_follow, args=(process.stdout, share.places, ending), daemon=True))
        readers[-1].start()
        yield share
    finally:
        ending.set()
        _end(process, readers)


def _end(process: subprocess.Popen[bytes], readers: Sequence[threading.Thread]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    # A forked process may have the pipe open too, so the program may not see EOF.
    process.terminate()
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GIVE_BACK_SECONDS)
    finally:
        process.kill()
        process.wait()
    for reader in readers:
        reader.join()
    for stream in filter(None, (process.stdout, process.stderr)):
        stream.close()


def _first_line(process: subprocess.Popen[bytes]) -> bytes | None:
    """Reads the first line. Returns None if the program ended before. Raises StoppedError."""
    assert process.stdout is not None
    line = b""
    while not line.endswith(b"\n"):
        stop_if_interrupted()
        readable, _, _ = select.select([process.stdout], [], [], _LOOK_SECONDS)
        if readable:
            piece = os.read(process.stdout.fileno(), 1)
            if not piece:
                return None
            line += piece
    return line


def _text(latin: str) -> str:
    """Decodes a text in which each character stands for a byte, into the form of `os.environ`."""
    return os.fsdecode(latin.encode("latin-1"))


def _listen(stream: IO[bytes] | None, said: list[str], tell: Callable[[str], None], granted: threading.Event) -> None:
    """Passes lines about waiting to `tell`, and all lines once the share is granted. Other lines go only to `said`."""
    assert stream is not None
    for line in stream:
        text = line.decode(errors="replace").strip().removeprefix("remotegpu: ")
        said.append(text)
        if granted.is_set() or text.startswith("waiting "):
            tell(text)


def _follow(stream: IO[bytes] | None, places: dict[str, str], ending: threading.Event) -> None:
    assert stream is not None
    for line in stream:
        moved = json.loads(line)
        places[moved["lease_id"]] = moved["endpoint"]
    if not ending.is_set():
        sys.stderr.write(f"remotegpu: {PROGRAM}, which held the share, has ended: CUDA calls will fail\n")
