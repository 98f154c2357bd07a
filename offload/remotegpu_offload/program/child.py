"""Prepares a Python process that the program started in the acceptor, so that it finds the client's code and files."""

import json
import os

from remotegpu_offload.code.finder import inherit
from remotegpu_offload.code.link import RELAY_ENV
from remotegpu_offload.files.layer import layer
from remotegpu_offload.program.acceptor import INHERITED


def attach() -> None:
    """Installs the finder and the file layer when the process starts.

    Sends no request to the client before the first use.
    """
    relay = os.environ[RELAY_ENV]
    folder = os.path.dirname(relay)
    with open(os.path.join(folder, INHERITED), encoding="utf-8") as file:
        hello = json.load(file)
    finder = inherit(hello, relay, folder)
    layer(finder, hello, folder).install()
