"""What was last known of the pools, kept on the node.

A plugin that starts while the API server is away must not tell the kubelet that there is nothing.
"""

import json
from dataclasses import asdict
from pathlib import Path

from remotegpu_deviceplugin.devices import Pools


def recall(file: Path) -> Pools | None:
    try:
        return Pools(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def remember(file: Path, pools: Pools) -> None:
    new = file.with_suffix(".new")
    new.write_text(json.dumps(asdict(pools)))
    new.replace(file)
