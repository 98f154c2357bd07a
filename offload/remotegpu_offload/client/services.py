"""The services that the program offers to its acceptor, and their part of the greeting."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from remotegpu_offload.code.server import CodeServer
from remotegpu_offload.code.sources import Main, this_main
from remotegpu_offload.config.model import Config
from remotegpu_offload.files.rules import rules
from remotegpu_offload.files.server import FileServer
from remotegpu_offload.program.terminal import Terminal
from remotegpu_offload.wire import Peer


class ClientService(Protocol):
    """A component of the program that answers requests of the acceptor."""

    def attach(self, peer: Peer) -> None:
        """Serves this acceptor. `peer` has not started, and nothing has been sent to it."""

    def hello(self) -> Mapping[str, Any]:
        """Returns this service's part of the greeting."""


def services(config: Config, *, main: Main | None = None, program: bool = False) -> dict[str, ClientService]:
    """Returns the services of every session, by their names in the greeting.

    Args:
        main: the main module, if it is not that of this process.
        program: the whole program runs in the acceptor, and this process is only its terminal.
    """
    code = CodeServer(
        config.code.page,
        config.code.never,
        config.folder,
        prefer=config.code.prefer,
        main=main or (None if program else this_main()),
        with_main_folder=config.source is None,
    )
    allowed = rules(config.files.read, config.files.write, os.fspath(config.folder))
    files = FileServer(allowed, os.fspath(Path.cwd()), code.may_read, cache_bytes=config.files.cache_bytes)
    return {"code": code, "files": files, "stdio": Terminal(descriptors=program)}


def process(config: Config) -> dict[str, Any]:
    """Describes this process for the acceptor: its arguments, its folder, and the variables that may be sent."""
    return {
        "argv": list(sys.argv),
        "cwd": os.fspath(Path.cwd()),
        "env": {name: value for name, value in os.environ.items() if config.env.crosses(name)},
    }
