"""An appliance with software GPUs and an environment for CUDA whose sessions run what a test sends; and CUDA there."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from offload_appliance import AS_STRANGER
from offload_hostile import hostile_environment, run
from support.stand_in import StandIn
from support.system import PRELOADED

from remotegpu.paths import find_dist
from remotegpu_offload.wire.peer import Peer

MIB = 1 << 20
# Of each GPU: `StandIn`'s.
GPU_MIB = 1024

# CUDA's driver API without anything between: `check` raises, `code` tells.
DRIVER = """
import ctypes
_driver = ctypes.CDLL("libcuda.so.1")

def code(name, *arguments):
    return getattr(_driver, name)(*arguments)

def check(name, *arguments):
    result = code(name, *arguments)
    if result:
        raise RuntimeError(f"{name}: {result}")

def start(device=0):
    check("cuInit", 0)
    context = ctypes.c_void_p()
    check("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    check("cuCtxSetCurrent", context)

def devices():
    count = ctypes.c_int()
    check("cuDeviceGetCount", ctypes.byref(count))
    return count.value

def uuid(device=0):
    found = (ctypes.c_ubyte * 16)()
    check("cuDeviceGetUuid_v2", found, device)
    return bytes(found).hex()

def take(size):
    where = ctypes.c_uint64()
    check("cuMemAlloc_v2", ctypes.byref(where), ctypes.c_size_t(size))
    return where.value

def take_all(piece):
    taken = 0
    while True:
        where = ctypes.c_uint64()
        result = code("cuMemAlloc_v2", ctypes.byref(where), ctypes.c_size_t(piece))
        if result:
            return taken, result
        taken += piece
"""


@contextlib.contextmanager
def cuda_appliance(
    *options: str,
    alone: bool = False,
    stranger: int | None = None,
    backend: str = "cuda",
    torch: str = "",
    libraries: Path | None = None,
) -> Iterator[StandIn]:
    """The real worker, and two software GPUs of 1 GiB. As root each session has a user id of its own; `stranger`: the
    appliance runs as this user instead.

    `backend`, `torch`, `libraries`: of the environment, as for `hostile_environment`.
    """
    # Not below pytest's own folder, which other users cannot read.
    folder = Path(tempfile.mkdtemp(prefix="remotegpu-test-"))
    folder.chmod(0o755)
    uids = (
        ["--uid-base", str(100_000 + os.getpid() % 4096 * 256)] if os.geteuid() == 0 and not (alone or stranger) else []
    )
    if stranger is not None:
        # Its own token would be for that user alone.
        uids = ["--anybody"]
    prefix = () if stranger is None else (sys.executable, str(AS_STRANGER), str(stranger))
    try:
        environment = hostile_environment(
            folder / "hostile", alone=alone, backend=backend, torch=torch, libraries=libraries
        )
        with StandIn(find_dist().root, "--gpus", "2", "--offload", environment, *uids, *options, prefix=prefix) as it:
            yield it
    finally:
        shutil.rmtree(folder)


def cuda(peer: Peer, code: str, **options: Any) -> Any:
    """Execute it there, after `DRIVER`; what it leaves in `value`."""
    return run(peer, DRIVER + code, **options)


def local_cuda(code: str) -> list[str]:
    """The command of a program that executes it after `DRIVER`."""
    return [sys.executable, "-c", DRIVER + code]


def share_variables(appliance: StandIn, lease_id: str, lease_secret: str) -> dict[str, str]:
    """With which a program of this machine uses the lease, as `remotegpu run` would give it one of its own."""
    from remotegpu.api.names import SHARES_ENV
    from remotegpu.api.objects import Share, shares_to_env

    shares = shares_to_env([Share(appliance.endpoint, lease_id, lease_secret)])
    return {**os.environ, **PRELOADED, SHARES_ENV: shares, "LD_LIBRARY_PATH": str(find_dist().client)}
