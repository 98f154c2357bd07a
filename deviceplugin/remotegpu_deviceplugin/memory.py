"""The last known figures of the pools, kept on the node.

A plugin that starts while the API server is away must not tell the kubelet that there are no devices.
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
    """Writes the figures to `file`. If the node's disk is full or read-only, it logs a warning and continues: the
    kubelet still gets the figures."""
    new: Path | None = None
    try:
        # A name of its own: two plugins serve the node while one replaces the other.
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
