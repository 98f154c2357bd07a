"""Lets other programs of the same user control a session, through a socket in a folder that only this user may enter.

Requests and answers are JSON objects, one per line: `{"op": "describe" | "stats" | "switch", ...}`. The answer is
`{"error": ...}` if a request fails.
"""

import contextlib
import json
import os
import re
import socket
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from remotegpu_offload.wire import OffloadError

if TYPE_CHECKING:
    from remotegpu_offload.client.session import Session

_LONGEST_LINE: Final = 1 << 20
_ID: Final = re.compile(r"[0-9a-f]{8}\Z")


class UnknownSessionError(OffloadError):
    """No running session has this id."""


def folder() -> Path:
    """Returns the folder in which this user's sessions listen; creates it if it is missing.

    Raises:
        OffloadError: the folder cannot be created, or another user owns it or may enter it.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    path = Path(runtime, "remotegpu") if runtime else Path(tempfile.gettempdir(), f"remotegpu-{os.getuid()}")
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise OffloadError(f"the folder {path} for this user's sessions cannot be made: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise OffloadError(f"{path} is not this user's own folder, so no session listens there: remove it")
    return path


class Control:
    """Listens for requests to one session, in a thread of its own, until it is closed."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._listener: socket.socket | None = None
        self.path: Path | None = None
        try:
            path = folder() / f"{session.id}.sock"
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(os.fspath(path))
            listener.listen(8)
        except (OffloadError, OSError):
            # The program works without control. `stats` will not list the session.
            return
        self._listener, self.path = listener, path
        threading.Thread(target=self._accept, args=(listener,), name="remotegpu control", daemon=True).start()

    def close(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)
        if self._listener is not None:
            # Closing alone would not wake the accepting thread.
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()

    def abandon(self) -> None:
        """Closes the socket in a forked child; the parent keeps listening."""
        if self._listener is not None:
            self._listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), name="remotegpu control", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines, contextlib.suppress(OSError):
            while line := lines.readline(_LONGEST_LINE):
                connection.sendall(json.dumps(self._answer(line)).encode() + b"\n")

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            asked = json.loads(line)
            match asked:
                case {"op": "describe"}:
                    return self._session.describe()
                case {"op": "stats"}:
                    return self._session.stats()
                case {"op": "switch"}:
                    self._session.switch(
                        backend=_text(asked, "backend"),
                        environment=_text(asked, "environment"),
                        timeout=float(asked["timeout"]) if asked.get("timeout") is not None else None,
                    )
                    return self._session.describe()
            return {"error": "the session knows describe, stats and switch"}
        except Exception as error:
            return {"error": str(error) or type(error).__name__}


def _text(asked: dict[str, Any], name: str) -> str | None:
    value = asked.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} must be a name")
    return value


def ask(session_id: str, seconds: float | None = None, **request: Any) -> dict[str, Any]:
    """Sends a request to a session of this user, and returns the answer.

    Raises:
        UnknownSessionError: the session does not exist.
        OffloadError: the session reports an error, or does not answer within `seconds`.
    """
    path = folder() / f"{session_id}.sock"
    unknown = UnknownSessionError(f"no session {session_id} runs as this user: `remotegpu offload stats` lists them")
    if not _ID.match(session_id):
        raise unknown
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(seconds)
            connection.connect(os.fspath(path))
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as lines:
                answer = json.loads(lines.readline() or b"null")
    except (FileNotFoundError, ConnectionRefusedError):
        raise unknown from None
    except TimeoutError:
        raise OffloadError(f"session {session_id} does not answer in {seconds} s; is its program stopped?") from None
    except (OSError, ValueError) as error:
        raise OffloadError(f"session {session_id} cannot be asked: {error}") from None
    if not isinstance(answer, dict):
        raise OffloadError(f"session {session_id} ended")
    if "error" in answer:
        raise OffloadError(f"session {session_id}: {answer['error']}")
    return answer


def sessions(seconds: float = 5.0) -> Iterator[dict[str, Any]]:
    """Yields the description of each running session. Removes the sockets of ended sessions."""
    for path in sorted(folder().glob("*.sock")):
        try:
            yield ask(path.stem, seconds, op="describe")
        except UnknownSessionError:
            path.unlink(missing_ok=True)
        except OffloadError as error:
            yield {"id": path.stem, "error": str(error)}
