"""`python as_stranger.py UID PROGRAM ARGUMENTS...`: runs a program as another user, who may read this Python.

As root only. What lies where that user could not read it, as under /root, is mounted there anew, for this program
alone.
"""

import os
import sys

from remotegpu_offload.acceptor import mounts, readable, syscalls

if __name__ == "__main__":
    uid = int(sys.argv[1])
    os.umask(0o022)
    keep = readable.needed()
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    opened = {path: os.open(path, os.O_PATH) for path in keep}
    for folder in mounts.closed(keep):
        mounts.hide(folder, opened)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.execv(sys.argv[2], sys.argv[2:])
