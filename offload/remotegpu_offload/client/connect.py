"""Connects to an acceptor through the program `remotegpu-connect`, which uses the CUDA client's code."""

import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Final

from remotegpu.api.names import CONNECT_ENV, STATS_ENV
from remotegpu.paths import NotBuiltError, find_dist
from remotegpu_offload.client.places import Connector, Wish
from remotegpu_offload.wire import OffloadError

PROGRAM: Final = "remotegpu-connect"
# Each call to an appliance has a shorter timeout of its own, and a session never waits for a share.
_SECONDS: Final = 120.0
# When the connection ends, the program already knows the exit code.
_ENDING_SECONDS: Final = 3.0
_LONGEST_LINE: Final = 1 << 20


class ConnectError(OffloadError):
    """No acceptor could be reached. `kind` is the program's word for it: settings, unreachable, refused, busy, ..."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


def connector() -> Connector:
    """Returns a connector to the acceptors of this process's shares."""
    return open_connection


def program() -> Path:
    """Returns the path of `remotegpu-connect`. Raises OffloadError if it is not installed."""
    if given := os.environ.get(CONNECT_ENV):
        return Path(given)
    try:
        return find_dist().program(PROGRAM)
    except NotBuiltError as error:
        raise OffloadError(f"{error}; or say in {CONNECT_ENV} where {PROGRAM} lies") from None


def open_connection(wanted: Wish) -> tuple[socket.socket, dict[str, Any]]:
    """Connects to an acceptor of this process's shares. Returns the connection and its description.

    Raises:
        ConnectError: no acceptor could be reached; the message gives the reason and a remedy.
        OffloadError: the program is not installed or does not run.
    """
    arguments = [os.fspath(program()), *_options(wanted)]
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            # A new session keeps Ctrl-C from remotegpu-connect: the program handles Ctrl-C and still needs the
            # connection. Without STATS_ENV, remotegpu-connect does not overwrite this program's statistics with its
            # own.
            variables = {name: value for name, value in os.environ.items() if name != STATS_ENV}
            process = subprocess.Popen(
                arguments, stdin=theirs.fileno(), stdout=subprocess.PIPE, env=variables, start_new_session=True
            )
        said = _Said(process)
        told = said.report()
        if "error" in told:
            raise ConnectError(str(told["error"]), str(told.get("kind")))
        told["exit_code"] = said.exit_code
        environment = told["environment"]
        told["place"] = f"acceptor {environment['name']} ({environment['backend']}) at {told['endpoint']}"
    except OSError as error:
        ours.close()
        raise OffloadError(f"{arguments[0]} cannot be started: {error.strerror}") from None
    except BaseException:
        ours.close()
        raise
    return ours, told


def _options(wanted: Wish) -> list[str]:
    options = [f"--backend={backend}" for backend in wanted.backends]
    if wanted.environment:
        options.append(f"--environment={wanted.environment}")
    if wanted.share is not None:
        options.append(f"--share={wanted.share}")
    if wanted.allow_skew:
        options.append("--allow-skew")
    options += [f"--pid={os.getpid()}", f"--process-name={' '.join(sys.argv)[:200]}"]
    return [*options, *(f"--package={name}={version}" for name, version in sorted(wanted.versions.items()))]


class _Said:
    """Reads the two lines that remotegpu-connect writes. That program ends when this end of its socket is closed."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._exit_code: int | None = None
        threading.Thread(target=self._read, name=f"remotegpu waits for {PROGRAM}", daemon=True).start()

    def report(self) -> dict[str, Any]:
        """Waits for the first line, and returns its JSON object.

        Raises ConnectError after a timeout or without an answer.
        """
        try:
            told = json.loads(self._lines.get(timeout=_SECONDS))
        except queue.Empty:
            raise ConnectError(
                f"{PROGRAM} has not connected within {_SECONDS:g} s; see the appliance's log", "timeout"
            ) from None
        except ValueError:
            told = None
        if not isinstance(told, dict):
            raise ConnectError(f"{PROGRAM} ended without a word; run it by hand to see why", "internal")
        return told

    def exit_code(self) -> int:
        """Returns the acceptor's exit code, or minus the signal that ended it; 0 if it is unknown.

        Call it after the connection has ended. Waits a few seconds at most.
        """
        if self._exit_code is None:
            self._exit_code = 0
            with contextlib.suppress(queue.Empty, ValueError, LookupError, TypeError):
                self._exit_code = int(json.loads(self._lines.get(timeout=_ENDING_SECONDS))["exit_code"])
        return self._exit_code

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for _ in range(2):
                self._lines.put(output.readline(_LONGEST_LINE))
        self._process.wait()
