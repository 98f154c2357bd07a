"""Shows sources in tracebacks: those of paged modules, and those of notebook cells."""

import importlib.util
import linecache
import re
from collections.abc import Iterable
from typing import Any, Final

from remotegpu_offload.code.link import Link
from remotegpu_offload.wire.frames import Service

_CELL: Final = re.compile(r"<(ipython|python)-input-|.*[/\\]ipykernel_\d+[/\\]\d+\.py\Z")


def show_in_tracebacks(origin: str, text: bytes) -> None:
    try:
        lines = importlib.util.decode_source(text).splitlines(keepends=True)
    except (SyntaxError, UnicodeDecodeError):
        return
    # Without a time, linecache does not compare the entry with a file on this machine.
    linecache.cache[origin] = (len(text), None, lines, origin)


def fetch_cells(link: Link) -> None:
    """Makes linecache ask the client for the source of a notebook cell when a traceback or `inspect` needs it."""
    original = linecache.updatecache
    asked: set[str] = set()

    def updatecache(filename: str, module_globals: dict[str, Any] | None = None) -> Iterable[str]:
        if _CELL.match(filename) and filename not in asked:
            asked.add(filename)
            reply = link.request(Service.CODE, {"op": "lines", "file": filename})
            if reply.buffers:
                show_in_tracebacks(filename, bytes(reply.buffers[0]))
                return linecache.getlines(filename)
        return original(filename, module_globals)

    linecache.updatecache = updatecache  # type: ignore[assignment]
