"""What was last known of the pools, kept on the node.

A plugin that starts while the API server is away must not tell the kubelet that there is nothing.
"""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from remotegpu_deviceplugin.devices import Pools


def recall(file: Path) -> Pools | None:
    try:
        return Pools(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def remember(file: Path, pools: Pools) -> None:
    # A name of its own: two plugins serve the node while one replaces the other.
    with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=f"{file.name}.", delete=False) as new:
        new.write(json.dumps(asdict(pools)))
    Path(new.name).replace(file)
