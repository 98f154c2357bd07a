"""The magic `%remotegpu -p 0.25`: a share for the running Python process of a notebook.

`remotegpu run` sets the environment of a new program. In a running process the magic loads the client's libraries
instead: a later lookup of libcuda.so.1 finds the loaded library of that name. So the magic must run before any use of
CUDA.
"""

import atexit
import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import typer
from typer.exceptions import TyperException

from remotegpu.api.failures import ApplianceError
from remotegpu.api.modes import Profile
from remotegpu.api.quantities import format_bytes
from remotegpu.cli import exits
from remotegpu.cli.options import (
    ApplianceOption,
    CaOption,
    CountOption,
    FractionOption,
    MemoryOption,
    ServerNameOption,
    TokenFileOption,
    TokenOption,
    WaitOption,
    read_access,
    split,
)
from remotegpu.cli.run.command import RunOptions, parse_ask, shares
from remotegpu.cli.run.holding import Held
from remotegpu.paths import Dist, NotBuiltError, find_dist
from remotegpu.rpc import pb
from remotegpu.rpc.client import Access, ApplianceClient, parse_endpoint

_LOOK_SECONDS: Final = 2.0
_MAPS: Final = Path("/proc/self/maps")

magic: Final = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@magic.command(help="A share of a GPU for this notebook, as `remotegpu run` has it for a program.")
def _options(
    appliance: ApplianceOption = "",
    count: CountOption = 1,
    fraction: FractionOption = None,
    memory: MemoryOption = None,
    wait: WaitOption = True,
    token: TokenOption = "",
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    server_name: ServerNameOption = "",
) -> RunOptions:
    return RunOptions(
        command=("notebook",),
        ask=parse_ask(count, fraction, memory),
        appliances=split(appliance),
        access=read_access(token, token_file, ca, server_name),
        wait=wait,
    )


class NotebookShare:
    """The share of this process, from `take` until `close` or the end of the process."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._held: Held | None = None
        self._access = Access()
        self._closed = threading.Event()

    def take(self, words: Sequence[str], show: Callable[[str], None]) -> None:
        """Takes a share with the options `words` of `remotegpu run`. `show` gets a line now and after each change.

        Raises ValueError, with the remedy, if the share is not available.
        """
        try:
            options = magic(list(words), standalone_mode=False, prog_name="%remotegpu")
            if isinstance(options, RunOptions):
                self._take(options, find_dist(), show)
                line = self.line()
                show(line)
                threading.Thread(target=self._watch, args=(show, line), daemon=True).start()
        except (exits.CliError, ApplianceError, NotBuiltError) as error:
            raise ValueError(str(error)) from None
        except TyperException as error:
            raise ValueError(f"{error.format_message()} `%remotegpu --help` lists the options") from None

    def _take(self, options: RunOptions, dist: Dist, show: Callable[[str], None]) -> None:
        if self._held or self._closed.is_set():
            raise exits.CliError(exits.USAGE, "this kernel has had its share; restart the kernel to take another one")
        if driver := _mapped("/libcuda.so"):
            raise exits.CliError(
                exits.USAGE,
                f"something uses CUDA in this kernel already, by {driver}; restart the kernel and take the share first",
            )
        with contextlib.ExitStack() as stack:
            held = stack.enter_context(shares(options, os.environ, dist, Profile.NORMAL, show))
            _use(held.environment, dist)
            self._held, self._stack = held, stack.pop_all()
            self._access = options.access if options.appliances else Access()
        atexit.register(self.close)

    def line(self) -> str:
        """Returns a line with the names of the GPUs and the used memory of the share. Raises ApplianceError."""
        places = {} if self._held is None else dict(self._held.places)
        lines = (_line(lease_id, endpoint, self._access) for lease_id, endpoint in places.items())
        return "; ".join(lines) or "the share was given back"

    def close(self) -> None:
        """Returns the share. A later use of the GPU gets a CUDA error."""
        self._closed.set()
        self._held = None
        self._stack.close()

    def _watch(self, show: Callable[[str], None], shown: str) -> None:
        while not self._closed.wait(_LOOK_SECONDS):
            try:
                line = self.line()
            except ApplianceError as error:
                line = str(error)
            if line != shown and not self._closed.is_set():
                show(line)
                shown = line


def _use(environment: Mapping[str, str], dist: Dist) -> None:
    """Sets the environment and loads the libraries that `remotegpu run` gives a new program."""
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
    preloaded = environment.get("LD_PRELOAD", "").split(":")
    stand_ins = [library for library in dist.stand_ins if str(library) in preloaded]
    for library in (*stand_ins, dist.client / "libcuda.so.1", dist.client / "libnvidia-ml.so.1"):
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    sys.path.append(str(dist.frameworks))


def _mapped(name: str) -> str | None:
    """Returns the path of a loaded library whose path has `name` in it; None if there is none."""
    paths = (line.split(maxsplit=5)[-1] for line in _MAPS.read_text().splitlines())
    return next((path for path in paths if name in path), None)


def _line(lease_id: str, endpoint: str, access: Access) -> str:
    with contextlib.closing(ApplianceClient(parse_endpoint(endpoint), access)) as client:
        inventory = client.inventory()
    lease = next((lease for lease in inventory.leases if lease.lease_id == lease_id), pb.Lease())
    names = ", ".join(inventory.gpus[index].name for index in lease.gpus)
    size, used = format_bytes(lease.memory_bytes * len(lease.gpus)), format_bytes(lease.used_bytes)
    state = f"suspended: {lease.suspended}" if lease.suspended else f"{used} of {size} used"
    return f"{names} at {endpoint}: {state}"
