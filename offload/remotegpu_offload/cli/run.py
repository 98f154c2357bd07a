"""`remotegpu offload run`: leases shares of appliances, and runs the program in the user's interpreter."""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from remotegpu.api import names
from remotegpu.api.quantities import MILLI_PER_GPU, Ask
from remotegpu.cli import exits
from remotegpu.cli.run.child import block_signals, run_child
from remotegpu.cli.run.command import parse_ask
from remotegpu.cli.run.holding import Wish, held
from remotegpu.cli.run.local import local_appliance
from remotegpu.paths import find_dist
from remotegpu.rpc.client import Access
from remotegpu_offload.cli import interpreter
from remotegpu_offload.config import Config, ConfigError, load

Split = Literal["torch", "rules", "app"]

# Starts the program without this project's packages in its search path, and without other frames below its main module.
_START: Final = f"""
import sys
if sys.version_info < (3, 11):
    sys.exit("remotegpu: %s is Python %d.%d: offload needs 3.11; choose another with --python"
             % ((sys.executable,) + sys.version_info[:2]))
{interpreter.LOADING}
from remotegpu_offload.importing.libraries import install_finder
install_finder()
from remotegpu_offload.launch import main
main(sys.argv[1:])
"""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of `offload run`. `program` holds the arguments of `python`.

    None means that the configuration decides.
    """

    program: Sequence[str]
    split: Split = "rules"
    backend: str | None = None
    config: Path | None = None
    python: str | None = None
    count: int = 1
    fraction: str | None = None
    memory: str | None = None
    appliances: Sequence[str] = ()
    access: Access = field(default_factory=Access)
    wait: bool = True


def run(options: RunOptions) -> int:
    """Runs the program to its end. Returns its exit code, or minus the signal that ended it.

    Raises CliError or ApplianceError.
    """
    mask = block_signals()
    dist = find_dist()
    dist.program("remotegpu-connect")
    python = interpreter.chosen(options.python)
    try:
        config = load(options.config)
    except ConfigError as error:
        raise exits.CliError(exits.USAGE, str(error)) from None
    ask = _ask(options, config)
    command = [python, "-c", _START, *interpreter.folders(), "--split", options.split]
    if options.config is not None:
        command += ["--config", str(options.config)]
    if options.backend is not None:
        command += ["--backend", options.backend]
    with contextlib.ExitStack() as stack:
        endpoints = options.appliances or [stack.enter_context(local_appliance(ask, "--offload", f"local={python}"))]
        # The local appliance has its own token, and no certificate.
        access = options.access if options.appliances else Access()
        wish = Wish(ask, endpoints, access, wait=options.wait, name=options.program)
        share = stack.enter_context(held(wish, os.environ, dist))
        environment = interpreter.with_libraries()
        environment[names.SHARES_ENV] = share.environment[names.SHARES_ENV]
        # The token gives more access than this lease; the program needs only the lease.
        for name in (names.TOKEN_ENV, names.TOKEN_FILE_ENV):
            environment.pop(name, None)
        return run_child([*command, *options.program], environment, mask)


def _ask(options: RunOptions, config: Config) -> Ask:
    rules = config.session
    if options.fraction is None and options.memory is None and options.count == 1:
        if rules.memory_bytes is not None:
            return Ask(1, 0, rules.memory_bytes)
        return Ask(1, rules.milli or MILLI_PER_GPU)
    return parse_ask(options.count, options.fraction, options.memory)
