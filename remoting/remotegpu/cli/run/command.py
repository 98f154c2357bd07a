"""The command `remotegpu run`: holds a share, sets the environment, and runs the user's command."""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

from remotegpu.api import names
from remotegpu.api.modes import Profile
from remotegpu.api.quantities import MILLI_PER_GPU, Ask, QuantityError, parse_compute, parse_fraction, parse_memory
from remotegpu.cli import exits
from remotegpu.cli.run.child import block_signals, find_command, run_child
from remotegpu.cli.run.holding import Held, Wish, held
from remotegpu.cli.run.local import local_appliance
from remotegpu.cli.run.null_rules import code_with_rules, tallied
from remotegpu.cli.run.report import reporting
from remotegpu.paths import Dist, find_dist
from remotegpu.rpc.client import Access


@dataclass(frozen=True, slots=True)
class RunOptions:
    command: Sequence[str]
    ask: Ask = field(default_factory=Ask)
    appliances: Sequence[str] = ()
    access: Access = field(default_factory=Access)
    native: bool = False
    profile: Profile | None = None
    managed_bytes: int | None = None  # None: the value of the environment, or the client's default
    wait: bool = True
    report: bool = False
    report_file: Path | None = None
    trace: Path | None = None


def parse_ask(count: int, fraction: str | None, memory: str | None) -> Ask:
    """Returns the share that the options -n, -p and -m ask for. Raises CliError."""
    try:
        if fraction is not None and memory is not None:
            raise QuantityError("-p and -m both say how much of a GPU: give one of them")
        if memory is not None:
            return Ask(count, 0, parse_memory(memory))
        if fraction is None:
            return Ask(count, MILLI_PER_GPU)
        share = parse_fraction(fraction)
        if share.count > 1 and count > 1:
            raise QuantityError(f"-p {fraction} and -n {count} both say how many GPUs: give one of them")
        return Ask(max(count, share.count), share.milli_per_gpu)
    except QuantityError as error:
        raise exits.CliError(exits.USAGE, str(error)) from None


def with_compute(ask: Ask, compute: str | None, limit: str | None) -> Ask:
    """Adds the options --compute and --compute-limit to a share. Raises CliError."""
    try:
        return replace(ask, compute=parse_compute(compute, limit))
    except QuantityError as error:
        raise exits.CliError(exits.USAGE, str(error)) from None


def run(options: RunOptions) -> int:
    """Runs the command to its end. Returns the result of `run_child`, or DIVERGED for a null GPU. Raises CliError."""
    mask = block_signals()
    dist = find_dist()
    if options.profile is not None and options.appliances:
        raise exits.CliError(exits.USAGE, "--profile is for GPUs of this machine: appliances have their own")
    check = os.environ.get(names.CHECK_ENV, "")
    if check not in ("", "0") and not options.native:
        raise exits.CliError(
            exits.USAGE,
            f"{names.CHECK_ENV}={check} checks nothing on a share, only natively: add --native, or unset it",
        )
    profile = options.profile or Profile.of(os.environ.get(names.SOFTGPU_PROFILE_ENV))
    # Fails early, before the wait for a share.
    find_command(options.command[0], f"{dist.bin}:{os.environ.get('PATH', os.defpath)}")
    with contextlib.ExitStack() as stack:
        base = os.environ | stack.enter_context(reporting(options.report, options.report_file))
        trace_file = None if options.trace is None else stack.enter_context(_open(options.trace))
        tally = None if options.appliances else stack.enter_context(tallied(os.environ, profile))
        base |= tally.environment() if tally else {}
        environment = stack.enter_context(shares(options, base, dist, profile)).environment
        if trace_file is not None:
            environment = stack.enter_context(_tracing(environment, dist, trace_file))
        return code_with_rules(run_child(options.command, environment, mask), tally)


@contextlib.contextmanager
def shares(
    options: RunOptions,
    base: Mapping[str, str],
    dist: Dist,
    profile: Profile,
    tell: Callable[[str], None] | None = None,
) -> Iterator[Held]:
    """Holds the share of the options until the block ends. Starts an appliance if none is named.

    `tell` has the same meaning as in `held`.
    """
    rules = {name: base[name] for name in (names.NULL_RULES_ENV, names.NULL_TALLY_ENV) if name in base}
    with contextlib.ExitStack() as stack:
        wish = Wish(
            options.ask,
            options.appliances,
            options.access,
            managed_bytes=options.managed_bytes,
            wait=options.wait,
            name=options.command,
        )
        if options.native:
            wish = Wish(options.ask, profile=str(profile))
        elif not options.appliances:
            started = stack.enter_context(local_appliance(options.ask, profile=profile, environment=rules))
            # The started appliance has its own token and no certificate.
            wish = replace(wish, appliances=(started,), access=Access())
        yield stack.enter_context(held(wish, base, dist, tell))


def _open(file: Path) -> TextIO:
    try:
        return file.open("w")
    except OSError as error:
        raise exits.CliError(exits.USAGE, f"--trace {file}: {error.strerror}") from None


@contextlib.contextmanager
def _tracing(environment: Mapping[str, str], dist: Dist, file: TextIO) -> Iterator[dict[str, str]]:
    """Yields the environment of a program to trace. After the block, writes the calls to `file`, prints a summary."""
    # Imported only here, so that a run without --trace starts sooner.
    from remotegpu.cli.run import timeline, trace  # noqa: PLC0415

    recordings: list[trace.Recording] = []
    with trace.timed(environment, dist, recordings) as traced:
        yield traced
    json.dump(timeline.events(recordings), file)
    for line in timeline.report(timeline.summary(recordings)) if recordings else ["the program made no driver call"]:
        sys.stderr.write(f"remotegpu: trace: {line}\n")
