"""The way to an acceptor, which is the CUDA client's: the program `remotegpu-connect` goes it and passes the bytes."""

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
# Each call to an appliance has its own, shorter limit; a session waits for no share.
_SECONDS: Final = 120.0
# It has asked already when the connection ends.
_ENDING_SECONDS: Final = 3.0
_LONGEST_LINE: Final = 1 << 20


class ConnectError(OffloadError):
    """No acceptor was reached. `kind` as the program says it: settings, unreachable, refused, busy, ..."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


def connector() -> Connector:
    """Reaches the acceptors of this process's shares."""
    return open_connection


def program() -> Path:
    """Raises OffloadError if it is not installed."""
    if given := os.environ.get(CONNECT_ENV):
        return Path(given)
    try:
        return find_dist().program(PROGRAM)
    except NotBuiltError as error:
        raise OffloadError(f"{error}; or say in {CONNECT_ENV} where {PROGRAM} lies") from None


def open_connection(wanted: Wish) -> tuple[socket.socket, dict[str, Any]]:
    """A connection to an acceptor of this process's shares.

    Raises:
        ConnectError: there is none; says why, and what to do.
        OffloadError: the program is not installed or does not run.
    """
    arguments = [os.fspath(program()), *_options(wanted)]
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            # In a session of its own: Ctrl-C is the program's, and what it does about it still needs the connection.
            # It would count CUDA calls of its own, of which there are none, in the place of this program's figures.
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
    """The two lines that the program writes. It ends when our end of its socket is closed."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._exit_code: int | None = None
        threading.Thread(target=self._read, name=f"remotegpu waits for {PROGRAM}", daemon=True).start()

    def report(self) -> dict[str, Any]:
        """How it went."""
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
        """Returns the acceptor's exit code, after the connection has ended, or minus the signal that ended it; 0 if it
        is not known."""
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
