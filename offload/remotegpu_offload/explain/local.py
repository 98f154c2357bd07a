"""An acceptor on this machine, without appliance and sandbox: it runs only this user's own program."""

import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import remotegpu
import remotegpu_offload
from remotegpu_offload.client.places import Wish


def local_acceptor(wanted: Wish) -> tuple[socket.socket, dict[str, Any]]:
    """A connector to a new acceptor with this program's packages, on the CPU. The acceptor ends with the connection."""
    name = wanted.environment or "local"
    ours, theirs = socket.socketpair()
    # By path, because the search path of this interpreter may not have this project's packages.
    folders = [str(Path(each.__file__ or "").resolve().parents[1]) for each in (remotegpu, remotegpu_offload)]
    start = f"import socket, sys; sys.path.extend({folders!r}); from remotegpu_offload.acceptor import session as s; "
    start += f"s.main(socket.socket(fileno={theirs.fileno()}), {name!r}, 'cpu')"
    with theirs:
        process = subprocess.Popen([sys.executable, "-c", start], pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL)
    threading.Thread(target=process.wait, name="remotegpu waits for its acceptor", daemon=True).start()
    environment = {"name": name, "backend": "cpu", "python": "", "packages": {}, "devices": []}
    return ours, {"environment": environment, "place": f"acceptor {name} on this machine"}
