"""The way to an acceptor, which is the CUDA client's: the program `remotegpu-connect` goes it and passes the bytes."""

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from remotegpu.api.names import CONNECT_ENV, STATS_ENV
from remotegpu.offload.client.places import Connector, Wish
from remotegpu.offload.wire import OffloadError
from remotegpu.paths import NotBuiltError, find_dist

PROGRAM: Final = "remotegpu-connect"
# Each call to an appliance has its own, shorter limit; a session waits for no share.
_SECONDS: Final = 120.0
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
        # It ends when our end of the socket is closed.
        threading.Thread(target=process.wait, name=f"remotegpu waits for {PROGRAM}", daemon=True).start()
        assert process.stdout is not None
        with process.stdout as output:
            told = _report(output.fileno())
        if "error" in told:
            raise ConnectError(str(told["error"]), str(told.get("kind")))
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


def _report(reading: int) -> dict[str, Any]:
    """The one line that the program writes."""
    deadline = time.monotonic() + _SECONDS
    line = b""
    while not line.endswith(b"\n") and len(line) < _LONGEST_LINE:
        if not select.select([reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise ConnectError(f"{PROGRAM} has not connected within {_SECONDS:g} s; see the appliance's log", "timeout")
        piece = os.read(reading, 65536)
        if not piece:
            break
        line += piece
    with contextlib.suppress(ValueError):
        told = json.loads(line)
        if isinstance(told, dict):
            return told
    raise ConnectError(f"{PROGRAM} ended without a word; run it by hand to see why", "internal")
