"""A Python process that the program started in the acceptor: it finds code and files as its parent does."""

import json
import os

from remotegpu_offload.code.finder import inherit
from remotegpu_offload.code.link import RELAY_ENV
from remotegpu_offload.files.layer import layer
from remotegpu_offload.program.acceptor import INHERITED


def attach() -> None:
    """Called when the process starts. Nothing is asked of the client before something is needed."""
    relay = os.environ[RELAY_ENV]
    folder = os.path.dirname(relay)
    with open(os.path.join(folder, INHERITED), encoding="utf-8") as file:
        hello = json.load(file)
    finder = inherit(hello, relay, folder)
    layer(finder, hello, folder).install()
