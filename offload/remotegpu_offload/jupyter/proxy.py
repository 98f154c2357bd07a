"""The process that Jupyter takes for the kernel; `provisioner.py` starts it.

It opens a session, has the acceptor run the kernel, listens at the ports of the connection file, and passes messages
and interrupts on. It ends when the kernel does.
"""

import argparse
import contextlib
import json
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import zmq

from remotegpu_offload.client.session import Session
from remotegpu_offload.config import ConfigError, SessionRules, load
from remotegpu_offload.jupyter.channels import BOTH_WAYS, IOPUB, Relay
from remotegpu_offload.wire import OffloadError, RemoteFailure, Request, Service
from remotegpu_offload.wire.threads import MAIN_THREAD

HEARTBEAT: Final = "hb"
UNAVAILABLE: Final = 69


def main() -> int:
    given = _arguments()
    # Only the thread below is to get it, and no program that is started here.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        connection = json.loads(given.connection_file.read_text())
        config = load()
        session = Session.open(replace(config, session=_chosen(config.session, given)))
    except (OffloadError, ConfigError, OSError, ValueError) as error:
        print(f"remotegpu: no kernel is started: {error}", file=sys.stderr)  # noqa: T201
        return UNAVAILABLE
    try:
        return _serve(session, connection)
    except RemoteFailure as failure:
        print(f"remotegpu: {session.place}: {failure.error}", file=sys.stderr)  # noqa: T201
    except OffloadError as error:
        print(f"remotegpu: {error}", file=sys.stderr)  # noqa: T201
    finally:
        session.close()
    return UNAVAILABLE


def _serve(session: Session, connection: dict[str, Any]) -> int:
    context: zmq.Context[Any] = zmq.Context()
    relay = Relay(context, lambda: session.peer, lambda: _sockets(context, connection), echo=HEARTBEAT)
    ready = threading.Event()

    def answer(request: Request) -> None:
        if request.header.get("op") == "ready":
            ready.set()
        elif request.header.get("op") == "message":
            relay.arrived(request)

    session.serve(Service.APP, answer, inline=True)

    def listen() -> None:
        # Nobody must be heard before the kernel hears.
        ready.wait()
        relay.start()

    def interrupts() -> None:
        while True:
            signal.sigwait({signal.SIGINT})
            with contextlib.suppress(OffloadError):
                session.peer.notify(Service.SESSION, {"op": "cancel", "thread": MAIN_THREAD})

    for act in (listen, interrupts):
        threading.Thread(target=act, name=f"remotegpu notebook {act.__name__}", daemon=True).start()
    try:
        signing = {"key": connection["key"], "scheme": connection["signature_scheme"]}
        session.peer.request(Service.APP, {"op": "kernel", **signing})
    finally:
        relay.close()
    context.term()
    return 0


def _sockets(context: "zmq.Context[Any]", connection: dict[str, Any]) -> dict[str, "zmq.Socket[Any]"]:
    kinds = {**dict.fromkeys(BOTH_WAYS, zmq.ROUTER), IOPUB: zmq.PUB, HEARTBEAT: zmq.REP}
    found: dict[str, zmq.Socket[Any]] = {}
    for name, kind in kinds.items():
        socket = found[name] = context.socket(kind)
        socket.linger = 1000
        separator = ":" if connection["transport"] == "tcp" else "-"
        socket.bind(f"{connection['transport']}://{connection['ip']}{separator}{connection[f'{name}_port']}")
    # A client that comes back under its old name is that client.
    for name in BOTH_WAYS:
        found[name].router_handover = 1
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="remotegpu notebook kernel", description=__doc__)
    parser.add_argument("-f", dest="connection_file", type=Path, required=True, metavar="FILE", help="Jupyter's")
    parser.add_argument("--backend", default="", help="the first to look for")
    parser.add_argument("--environment", default="", help="its name; else the first that fits")
    return parser.parse_args()


def _chosen(session: SessionRules, given: argparse.Namespace) -> SessionRules:
    if given.backend:
        session = replace(session, backends=(given.backend,))
    return replace(session, environment=given.environment) if given.environment else session
