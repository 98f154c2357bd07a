"""One client's session in its acceptor process: greeting, features, and end.

`python -m remotegpu_offload.acceptor.session --fd N` serves one client on a socket, without appliance and sandbox.
"""

import argparse
import contextlib
import importlib
import importlib.util
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from remotegpu.api.names import SHARES_ENV
from remotegpu_offload.acceptor import versions
from remotegpu_offload.acceptor.environment import VISIBLE, Environment, describe
from remotegpu_offload.wire.errors import LostError, OffloadError
from remotegpu_offload.wire.frames import Message, Service
from remotegpu_offload.wire.peer import Peer
from remotegpu_offload.wire.request import Request
from remotegpu_offload.wire.threads import MAIN_THREAD

# Modules with `attach(session)`, in this order. Next to each, the module that it needs besides this package.
FEATURES: Final = (
    ("remotegpu_offload.code.finder", ""),
    ("remotegpu_offload.files.layer", ""),
    ("remotegpu_offload.functions.acceptor", ""),
    ("remotegpu_offload.torch.acceptor.acceptor", "torch"),
    ("remotegpu_offload.program.acceptor", ""),
)
# Variables that the acceptor keeps: they locate its libraries, and limit the devices that it may use.
_KEPT_VARIABLES: Final = frozenset(
    ("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "PYTHONHOME", "PYTHONPATH", "HOME", "TMPDIR", SHARES_ENV)
).union(*VISIBLE.values())


class GreetingError(OffloadError):
    """The acceptor refused the client's greeting; the message says why."""


class AcceptorSession:
    """The state that the features of one session share. `hello` and `loaded` are empty until the client's greeting."""

    def __init__(self, peer: Peer, environment: Environment, folder: Path) -> None:
        self.peer = peer
        self.environment = environment
        self.folder = folder
        self.hello: dict[str, Any] = {}
        # The object that serves each service, and each feature's line in `stats`.
        self.loaded: dict[Service, Any] = {}
        self.stats: dict[str, Callable[[], Any]] = {}
        # The table of objects; the feature that serves objects sets it.
        self.objects: Any = None
        self._since = time.monotonic()
        peer.serve(Service.SESSION, self._answer)

    def run(self) -> None:
        """Serves until the connection ends.

        Call it in the main thread: it runs the calls of the client's main thread.
        """
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.peer.run_main()

    def end(self, reason: str) -> None:
        """Sends the client the reason, and closes the connection."""
        with contextlib.suppress(LostError):
            self.peer.notify(Service.SESSION, {"op": "end", "reason": reason})
        self.peer.close()

    def _answer(self, request: Request) -> Message | None:
        match request.header.get("op"):
            case "hello":
                return Message(self._greet(request.header))
            case "stats":
                return Message(self._statistics())
            case "cancel":
                self.peer.threads.interrupt(int(request.header.get("thread", MAIN_THREAD)))
                return None
            case "bye":
                # The answer is sent before the connection closes.
                request.reply({})
                self.peer.close()
                return None
            case other:
                raise GreetingError(f"the acceptor knows no {other!r}: install the same version on both ends")

    def _greet(self, hello: dict[str, Any]) -> dict[str, Any]:
        """Checks versions, takes over the client's variables, arguments and folder, and attaches the features.

        Raises GreetingError that names both versions.
        """
        if self.hello:
            raise GreetingError("this session has been greeted already")
        skew = versions.compare(hello.get("versions", {}), self.environment.versions)
        noted = list(skew.warnings)
        if skew.refusals:
            if not hello.get("allow_skew"):
                raise GreetingError(skew.sentence(f"environment {self.environment.name}"))
            noted += skew.refusals
        self.hello = hello
        _take_over(hello.get("env", {}), hello.get("argv"))
        os.chdir(self.folder)
        for feature in import_features():
            feature.attach(self)
        return {
            "environment": self.environment.to_dict(),
            "services": sorted(service.name for service in self.loaded),
            "warnings": noted,
            "folder": str(self.folder),
            "pid": os.getpid(),
        }

    def _statistics(self) -> dict[str, Any]:
        counters = self.peer.counters
        return {
            "environment": self.environment.to_dict(),
            "seconds": time.monotonic() - self._since,
            "threads": threading.active_count(),
            "memory_bytes": _resident(),
            "most_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
            "counters": counters.as_dict(),
            **{name: line() for name, line in self.stats.items()},
        }


def serve(sock: socket.socket, environment: Environment, folder: Path) -> None:
    """Serves one session from its greeting to its end. Blocks."""
    AcceptorSession(Peer(sock, name="the client", accepting=True), environment, folder).run()


def main(sock: socket.socket, name: str = "local", backend: str = "") -> None:
    """Serves one client in this process, in a temporary folder that is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="remotegpu-offload-"))
    # SIGTERM raises SystemExit, so that the folder is removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        serve(sock, describe(name, backend), folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def import_features() -> list[ModuleType]:
    """Imports the features that this environment supports.

    All are imported before the first one is attached, because afterwards the import system also finds the client's
    modules.
    """
    available = [name for name, needs in FEATURES if not needs or importlib.util.find_spec(needs) is not None]
    return [importlib.import_module(name) for name in available]


def _take_over(variables: Mapping[str, str], argv: list[str] | None) -> None:
    kept = sorted(_KEPT_VARIABLES & variables.keys())
    if kept:
        warnings.warn(f"{', '.join(kept)}: the acceptor keeps its own", RuntimeWarning, stacklevel=2)
    os.environ.update({key: value for key, value in variables.items() if key not in _KEPT_VARIABLES})
    if argv is not None:
        sys.argv[:] = argv
    if "TZ" in variables:
        time.tzset()


def _resident() -> int:
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m remotegpu_offload.acceptor.session", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="a connected stream socket")
    parser.add_argument("--name", default="local", help="of the environment")
    parser.add_argument("--backend", default="", choices=("", *VISIBLE), help="default: what torch finds")
    return parser.parse_args()


if __name__ == "__main__":
    given = _arguments()
    # Import by full name: features would not recognise the classes of a module named `__main__`.
    itself = importlib.import_module("remotegpu_offload.acceptor.session")
    itself.main(socket.socket(fileno=given.fd), given.name, given.backend)
