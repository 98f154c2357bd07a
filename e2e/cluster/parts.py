"""The cluster's programs, as processes that outlive the one that started them; a record file names each.

A start time tells a process from a later one with the same number: no foreign process is ever signalled.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

STOP_SECONDS = 30


@dataclass(frozen=True)
class Part:
    """One program of the cluster, for example `kubelet-node-a`; its record holds how to start it again."""

    state: Path
    name: str

    @property
    def log(self) -> Path:
        return self.state / "logs" / f"{self.name}.log"

    @property
    def _record(self) -> Path:
        return self.state / "parts" / f"{self.name}.json"

    @property
    def pid(self) -> int | None:
        """The process id; None if the program does not run, or never did."""
        try:
            record = json.loads(self._record.read_text())
        except FileNotFoundError:
            return None
        return record["pid"] if start_time(record["pid"]) == record["started"] else None

    def launch(self, command: list[str]) -> int:
        """Runs `command` apart from this process and notes it; its output is added to the part's log."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._record.parent.mkdir(parents=True, exist_ok=True)
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        pid = os.posix_spawnp(
            command[0],
            command,
            os.environ,
            setsid=True,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self.log), append, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
        )
        self._record.write_text(json.dumps({"pid": pid, "started": start_time(pid), "command": command}))
        return pid

    def start(self) -> int:
        """Runs the same command again if the program does not run."""
        return self.pid or self.launch(json.loads(self._record.read_text())["command"])

    def send(self, number: signal.Signals) -> None:
        if (pid := self.pid) is None:
            raise RuntimeError(f"{self.name} does not run; its log is {self.log}")
        os.kill(pid, number)

    def pause(self) -> None:
        self.send(signal.SIGSTOP)

    def resume(self) -> None:
        self.send(signal.SIGCONT)

    def kill(self) -> None:
        """Kills the program at once, like a crash."""
        self.stop(signal.SIGKILL)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends it and waits until it is gone; with SIGKILL after some time."""
        if (pid := self.pid) is None:
            return
        started = start_time(pid)
        for step in (number, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, step)
                os.kill(pid, signal.SIGCONT)
            if gone(pid, started, STOP_SECONDS):
                return
        raise RuntimeError(f"{self.name} (process {pid}) does not end even on SIGKILL; see /proc/{pid}/stack")


def gone(pid: int, started: str | None, seconds: float) -> bool:
    """Waits until that process has ended; false if it has not in time."""
    deadline = time.monotonic() + seconds
    while started is not None and start_time(pid) == started:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def start_time(pid: int) -> str | None:
    """Returns the start time in clock ticks since boot; None for a process that has ended, even if it is a zombie."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        # The program's name, in brackets, may hold spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else fields[19]
