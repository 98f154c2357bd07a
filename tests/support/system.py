"""Starts appliances and runs programs on them through the command line, as a user does."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]
DIST = Path(os.environ.get("REMOTEGPU_DIST", ROOT / "target" / "dist"))
REMOTEGPU = str(Path(sys.executable).parent / "remotegpu")
# The program of `remotegpu run` for machines without Python.
REMOTEGPU_RUN = str(DIST / "bin" / "remotegpu-run")
PROGRAMS = ROOT / "tests" / "programs"
MIB = 1 << 20
# The libraries that `remotegpu run` preloads for a software GPU.
PRELOADED = {"LD_PRELOAD": ":".join(str(path) for path in sorted(DIST.glob("native/stand-ins/*.so.*")))}

# Test programs that compare their own results and print `ok`.
SELF_CHECKING = (
    "vector_add.py",
    "free_under_kernel.py",
    "spin_and_release.py",
    "full_queue.py",
    "relay_through_pinned.py",
    "callbacks.py",
    "bad_handles.py",
    "mapped_memory.py",
    "pinned_in_kernels.py",
    "managed_variables.py",
    "wait_and_leave.py",
)


class Ports:
    """Loopback ports for the servers of this process.

    The ports are below the kernel's ephemeral ports, and each process of a network namespace has its own block. So no
    other process can take a port between its choice and its first use.
    """

    FIRST, BLOCKS, BLOCK = 13_000, 170, 100

    def __init__(self) -> None:
        self._mine = socket.socket(socket.AF_UNIX)  # its abstract name is the lock of a block, until the process ends
        self._next: Iterator[int] = iter(())
        self._owner = 0

    def _take_block(self) -> None:
        self._mine.close()
        self._mine, self._owner = socket.socket(socket.AF_UNIX), os.getpid()
        for block in range(self.BLOCKS):
            with contextlib.suppress(OSError):
                self._mine.bind(f"\0remotegpu-test-ports-{block}")
                first = self.FIRST + block * self.BLOCK
                self._next = itertools.cycle(range(first, first + self.BLOCK, 2))
                return
        raise RuntimeError("all blocks of test ports are taken: too many test processes run in this network namespace")

    def pair(self) -> int:
        """Returns a port that is free together with the next one. A port is used again only after all others."""
        if self._owner != os.getpid():
            self._take_block()
        for port in itertools.islice(self._next, self.BLOCK // 2):
            with socket.socket() as first, socket.socket() as second, contextlib.suppress(OSError):
                # Like servers: connections in TIME_WAIT do not prevent listening.
                for each in (first, second):
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                first.bind(("127.0.0.1", port))
                second.bind(("127.0.0.1", port + 1))
                return port
        raise RuntimeError("all test ports of this process are in use: does something leave its servers running?")


_PORTS = Ports()


def free_port() -> int:
    """Returns a loopback port that is free together with the next one."""
    return _PORTS.pair()


# The factor by which time limits grow while other work wants the CPUs all the time.
CROWDED = 4


def _crowded_seconds() -> float:
    """Returns the seconds since boot in which some process was ready to run but had no CPU."""
    try:
        found = re.search(r"some .*total=(\d+)", Path("/proc/pressure/cpu").read_text())
    except OSError:
        return 0
    return int(found[1]) / 1e6 if found else 0


class Watch:
    """Measures time against limits for an idle machine. Other work on the machine extends the limits.

    A limit grows up to CROWDED times.
    """

    def __init__(self) -> None:
        self._started, self._crowded = time.monotonic(), _crowded_seconds()

    def within(self, seconds: float) -> bool:
        passed = time.monotonic() - self._started
        crowded = min(_crowded_seconds() - self._crowded, passed)
        return passed < seconds or passed * passed < seconds * (passed + (CROWDED - 1) * crowded)


def open_files(process: int) -> dict[Path, str]:
    """Returns the open files of a process, by their paths in /proc. Leaves out files that it closes meanwhile."""
    found = {}
    for link in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found[link] = str(link.readlink())
    return found


def until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Returns the first true value of `condition`, called 20 times a second. Fails after `seconds` of a `Watch`."""
    watch = Watch()
    while not (value := condition()):
        assert watch.within(seconds), f"not within {seconds} s: {what}"
        time.sleep(0.05)
    return value


@contextlib.contextmanager
def again_and_again(seconds: float, act: Callable[[list[int]], None]) -> Iterator[list[int]]:
    """Calls `act` with the yielded list in a thread during the block, every `seconds`."""
    times: list[int] = []
    over = threading.Event()

    def work() -> None:
        while not over.wait(seconds):
            act(times)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield times
    finally:
        over.set()
        thread.join()


class Log:
    """The output of a program on a stream. A thread always reads it, since a full pipe would block the program."""

    def __init__(self, stream: IO[str]) -> None:
        self.lines: list[str] = []  # so far
        self._new: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for text in stream:
                self.lines.append(text)
                self._new.put(text)
        self._new.put(None)

    def __iter__(self) -> Iterator[str]:
        """Yields the lines that no caller has taken yet, as they come, until the program ends."""
        while (text := self._new.get()) is not None:
            yield text
        self._new.put(None)

    def whole(self) -> str:
        """Returns the whole output, after the program has ended."""
        self._thread.join(timeout=30)
        return "".join(self.lines)


class Appliance:
    """An appliance in its own process: a software appliance of `memory_mib`, or one with the machine's real GPUs."""

    def __init__(
        self,
        *options: str,
        profile: str = "normal",
        memory_mib: int = 2048,
        backend: str = "software",
        within: tuple[str, ...] = (),
    ) -> None:
        self.endpoint = f"127.0.0.1:{free_port()}"
        command = [*within, REMOTEGPU, "appliance", "--backend", backend, "--listen", self.endpoint, *options]
        if backend == "software":
            command += ["--memory", f"{memory_mib}MiB", "--profile", profile]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.log = Log(self.process.stderr)

    def cli(self, *arguments: str, timeout: float = 30) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end. The limit is long: 0.3 s of CPU took over 30 s beside sixteen processes."""
        command, *rest = arguments
        words = [REMOTEGPU, command, "--appliance", self.endpoint, *rest]
        return subprocess.run(words, capture_output=True, text=True, timeout=CROWDED * timeout)

    def wait_until_ready(self, *options: str) -> None:
        def ready() -> bool:
            if self.process.poll() is not None:
                raise AssertionError(f"appliance ended with {self.process.returncode}: {self.log.whole()}")
            return self.cli("doctor", *options).returncode == 0

        until(ready, 60, "the appliance is ready")

    def inventory(self) -> dict[str, Any]:
        listing = self.cli("ls", "--json")
        assert listing.returncode == 0, listing.stderr
        value: dict[str, Any] = json.loads(listing.stdout)
        return value

    def leased_bytes(self) -> int:
        return sum(gpu["leased_bytes"] for a in self.inventory()["appliances"] for gpu in a["gpus"])

    def used_bytes(self) -> int:
        return sum(gpu["used_bytes"] for a in self.inventory()["appliances"] for gpu in a["gpus"])

    def command(self, *program: str, share: str = "0.25", options: tuple[str, ...] = ()) -> list[str]:
        name, *arguments = program
        path = PROGRAMS / name
        actual = [sys.executable, str(path)] if path.suffix == ".py" and path.exists() else [name]
        return [REMOTEGPU, "run", "--appliance", self.endpoint, "-p", share, *options, "--", *actual, *arguments]

    def run(
        self,
        *program: str,
        share: str = "0.25",
        env: dict[str, str] | None = None,
        timeout: float = 120,
        options: tuple[str, ...] = (),
    ) -> subprocess.CompletedProcess[str]:
        """Runs a test program, or any command, on a share to its end."""
        try:
            return subprocess.run(
                self.command(*program, share=share, options=options),
                capture_output=True, text=True, timeout=timeout, env=os.environ | (env or {}),
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            late.add_note(f"it said: {late.stderr!r}"[-4000:])
            raise

    @contextlib.contextmanager
    def start(
        self, *program: str, share: str = "0.25", env: dict[str, str] | None = None, stdin: int | None = None
    ) -> Iterator[subprocess.Popen[str]]:
        """Runs a test program in a process group of its own during the block."""
        process = subprocess.Popen(
            self.command(*program, share=share), stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env=os.environ | (env or {}), start_new_session=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def workers(self) -> list[int]:
        """Process ids of this appliance's workers."""
        found = subprocess.run(
            ["pgrep", "-P", str(self.process.pid), "-f", "remotegpu-worker"], capture_output=True, text=True
        )
        return [int(pid) for pid in found.stdout.split()]

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def started_by(command: str, folder: Path) -> Iterator[None]:
    """Makes the shell words `command` start remotegpu during the block, by a script in `folder`."""
    global REMOTEGPU
    before, script = REMOTEGPU, folder / "remotegpu"
    script.write_text(f'#!/bin/sh\nexec {command} {before} "$@"\n')
    script.chmod(0o755)
    REMOTEGPU = str(script)
    try:
        yield
    finally:
        REMOTEGPU = before


@contextlib.contextmanager
def appliance(
    *options: str, profile: str = "normal", memory_mib: int = 2048, backend: str = "software"
) -> Iterator[Appliance]:
    it = Appliance(*options, profile=profile, memory_mib=memory_mib, backend=backend)
    try:
        it.wait_until_ready()
        yield it
    finally:
        it.stop()


def native(*program: str, env: dict[str, str] | None = None, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Runs a test program directly on the software GPU."""
    name, *arguments = program
    return subprocess.run(
        [REMOTEGPU, "run", "--native", "--", sys.executable, str(PROGRAMS / name), *arguments],
        capture_output=True, text=True, timeout=timeout, env=os.environ | (env or {}),
    )  # fmt: skip


def training_results(file: Path) -> dict[str, Any]:
    """Returns the results of examples/01-digits/train.py --json, without those that differ from run to run."""
    found: dict[str, Any] = json.loads(file.read_text())
    found.pop("seconds")
    return found


def line(process: subprocess.Popen[str]) -> str:
    """Returns the next line that a started program prints. Fails if the program has ended."""
    assert process.stdout is not None
    text = process.stdout.readline()
    assert text, f"the program ended: {process.stderr.read() if process.stderr else ''}"
    return text.strip()
