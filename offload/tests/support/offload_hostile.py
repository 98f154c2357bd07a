"""An environment whose sessions run whatever code a test sends, as a hostile client's would."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from remotegpu_offload.wire.frames import Service
from remotegpu_offload.wire.peer import Peer

_FEATURE = """
import threading
from remotegpu_offload.wire.frames import Message, Service

def attach(session):
    def run(request):
        space = {"session": session, "request": request}
        exec(request.header["code"], space)
        return Message({"value": space.get("value")})
    session.peer.serve(Service.APP, run)
"""
_ZYGOTE = """
import errno, sys
sys.argv[1:] = sys.argv[sys.argv.index("--control-fd"):]
sys.path.append({folder!r})
from remotegpu_offload.acceptor import session, syscalls, zygote

def refuse(flags):
    raise OSError(errno.EPERM, "no namespaces here")

if {alone!r}:
    syscalls.unshare = refuse
{first}
session.FEATURES = (("hostile_feature", ""),)
zygote.main()
"""


def hostile_environment(
    folder: Path,
    *,
    alone: bool = False,
    first: str = "",
    backend: str = "cpu",
    torch: str = "",
    libraries: Path | None = None,
) -> str:
    """A value for --offload.

    Args:
        folder: it is made.
        alone: the kernel refuses namespaces, as in a restricted pod.
        first: what the zygote's program executes before it serves.
        backend: with the words that follow it in the option.
        torch: the source of a module that goes by that name.
        libraries: a folder where the interpreter finds libraries first.
    """
    folder.mkdir()
    folder.chmod(0o755)
    (folder / "hostile_feature.py").write_text(_FEATURE)
    (folder / "zygote.py").write_text(_ZYGOTE.format(folder=str(folder), alone=alone, first=first))
    if torch:
        (folder / "torch.py").write_text(torch)
    program = folder / "python"
    variable = "" if libraries is None else f"LD_LIBRARY_PATH={libraries} "
    program.write_text(f'#!/bin/sh\n{variable}exec {sys.executable} -P -s {folder / "zygote.py"} "$@"\n')
    for path in folder.iterdir():
        path.chmod(0o755)
    return f"hostile={program}:{backend}"


def run(peer: Peer, code: str, timeout: float = 60.0) -> Any:
    """Execute it there; what it leaves in `value`."""
    return peer.request(Service.APP, {"code": code}, timeout=timeout).header["value"]
