"""The last known figures of the pools, stored on the node.

A plugin that starts while the API server is unreachable must not advertise zero devices to the kubelet.
"""

import json
import logging
import tempfile
from dataclasses import asdict
from pathlib import Path

from remotegpu_deviceplugin.devices import Pools

_log = logging.getLogger(__name__)


def recall(file: Path) -> Pools | None:
    try:
        return Pools(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def remember(file: Path, pools: Pools) -> None:
    """Writes the figures to `file`. Logs a warning and returns if the node's disk is full or read-only."""
    new: Path | None = None
    try:
        # A unique name, because two plugins serve the node during an update.
        with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=f"{file.name}.", delete=False) as opened:
            new = Path(opened.name)
            opened.write(json.dumps(asdict(pools)))
        new.replace(file)
    except OSError as error:
        if new is not None:
            new.unlink(missing_ok=True)
        _log.warning(
            "%s stays as it was (%s): a plugin that starts while the API server is away tells the kubelet old figures; "
            "make room on the node's disk, or make it writable",
            file,
            error.strerror,
        )
