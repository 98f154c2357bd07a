"""Runs `remotegpu doctor`: prints numbered checks, each OK, WARN or FAIL, with the command that repairs a fault."""

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from remotegpu.cli.doctor.here import checks_of_all, local_checks
from remotegpu.cli.output import console, print_json, say
from remotegpu.rpc import pb
from remotegpu.rpc.client import Access

if TYPE_CHECKING:
    from remotegpu.cli.cluster.objects import Cluster

Found = tuple[str, pb.Check]  # place and check

_FIELDS = ("name", "status", "message", "fix")
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    appliances: Sequence[str]
    access: Access
    cluster: "Cluster | None" = None
    as_json: bool = False
    bundle: Path | None = None


def doctor(options: DoctorOptions) -> bool:
    """Runs and prints all checks, and writes the bundle. Returns whether no check failed."""
    checks = list(_checks(options))
    good = all(check.status != "fail" for _, check in checks)
    report = {
        "healthy": good,
        "checks": [{"where": where, **{name: getattr(check, name) for name in _FIELDS}} for where, check in checks],
    }
    if options.bundle is not None:
        from remotegpu.cli.doctor.bundle import write_bundle  # noqa: PLC0415

        write_bundle(options.bundle, report, options.appliances, options.access, options.cluster)
    if options.as_json:
        print_json(report)
    else:
        _print(checks, options.bundle)
    return good


def _checks(options: DoctorOptions) -> Iterator[Found]:
    for check in local_checks(named=bool(options.appliances or options.cluster)):
        yield "here", check
    yield from checks_of_all(options.appliances, options.access)
    if options.cluster is not None:
        from remotegpu.cli.doctor.cluster import checks, read  # noqa: PLC0415

        for check in checks(read(options.cluster, datetime.datetime.now(datetime.UTC))):
            yield "cluster", check


def _print(checks: Sequence[Found], bundle: Path | None) -> None:
    out = console()
    for number, (where, check) in enumerate(checks, 1):
        status = f"[{_COLOURS.get(check.status, 'red')}]{check.status.upper():4}[/]"
        out.print(f"{number:2} {status} ", end="")
        fix = f"\n        fix: {check.fix}" if check.fix else ""
        say(out, f"{where}: {check.name}: {check.message}{fix}")
    if bundle is not None:
        say(out, f"{bundle} has these checks and what they looked at, without secrets: look before you send it")
