"""In place of `remotegpu-connect`, for programs that find it by REMOTEGPU_CONNECT: starts an acceptor itself."""

import json
import os
import signal
import socket
import sys

if __name__ == "__main__":
    options = sys.argv[1:]
    # An acceptor is no child of the program: it is not armed as those are.
    sys.meta_path[:] = [finder for finder in sys.meta_path if not hasattr(finder, "remotegpu_watches")]
    fd, report = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    backends = [option.partition("=")[2] for option in options if option.startswith("--backend=")]
    backend = backends[0] if backends else "cpu"
    environment = {"name": "here", "backend": backend, "python": "", "packages": {}, "devices": []}
    with os.fdopen(report, "w") as line:
        line.write(json.dumps({"session": "0", "environment": environment, "endpoint": "this machine"}) + "\n")
    if os.fork():
        # The process that started this one waits for the end of the session, so this one waits for it too.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.wait()
        sys.exit()
    # As on another machine: no signal comes but through the session.
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    from remotegpu_offload.acceptor import session

    session.main(socket.socket(fileno=fd), "here")
