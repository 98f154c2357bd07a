"""The command `remotegpu usage`: prints sums of the operator's usage records, or idle claims."""

import csv
import datetime
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Final, Literal

from remotegpu.api.accounts import PLACES, By, Idle, Row, idlers, is_stale, rows
from remotegpu.api.durations import format_duration, parse_duration
from remotegpu.api.kubernetes import API_VERSION, POOLS
from remotegpu.api.pools import GPUPool
from remotegpu.api.quantities import format_milli
from remotegpu.api.usage import USAGE_LABEL, Record, amounts, read
from remotegpu.cli import exits
from remotegpu.cli.cluster.objects import Cluster, Object, RefusedError
from remotegpu.cli.output import add_row, console, new_table, print_json

Output = Literal["table", "csv", "json"]

_HOUR: Final = 3600
_GIB: Final = 1 << 30


def sums(cluster: Cluster, system: str, since: str, until: str, wanted: str, output: Output) -> None:
    """Prints sums of usage between two times, grouped by the keys `wanted`. Raises CliError."""
    by = by_of(wanted)
    now = int(time.time())
    first, last = time_of(since, now), time_of(until, now) if until else now
    if first >= last:
        raise exits.CliError(exits.USAGE, f"--since {since} is not before --until {until or 'now'}")
    record = _record(cluster, system, now)
    prices = {pool.name: pool.spec.prices for pool in _pools(cluster)}
    found = rows(amounts(record, first, last), by, prices)
    if output == "json":
        print_json([each.by | {name: value for name, value in asdict(each).items() if name != "by"} for each in found])
    elif output == "csv":
        _print_csv(found, by)
    else:
        _print_table(found, by)


def idle(cluster: Cluster, system: str, after: str, output: Output) -> None:
    """Prints claims whose share was unused for at least the duration `after`. Raises CliError."""
    try:
        least = parse_duration(after)
    except ValueError as error:
        raise exits.CliError(exits.USAGE, f"--idle: {error}") from None
    now = int(time.time())
    found = idlers(_record(cluster, system, now).open(), least, now)
    if output == "json":
        print_json([asdict(each) for each in found])
    elif output == "csv":
        _write_csv(Idle.__slots__, ([str(value) for value in asdict(each).values()] for each in found))
    elif not found:
        console().print(f"every claim with a share has had a session within {format_duration(least)}", highlight=False)
    else:
        shown = new_table("CLAIM", "USER", "POOL", "HAS", "UNUSED FOR")
        for each in found:
            gpus = format_milli(round(each.gpus * 1000))
            unused = format_duration(each.idle_seconds // 60 * 60)
            add_row(shown, f"{each.namespace}/{each.claim}", each.user or "-", each.pool, gpus, unused)
        console().print(shown)


def by_of(text: str) -> list[By]:
    """Parses the option --by. Raises CliError."""
    found = [each for name in text.split(",") for each in PLACES if each == name.strip()]
    if len(found) != len(text.split(",")):
        raise exits.CliError(
            exits.USAGE, f"--by {text}: name one or several of {', '.join(PLACES)}, with commas between"
        )
    return list(dict.fromkeys(found))


def time_of(text: str, now: int) -> int:
    """Returns the time, in seconds since 1970, of "7d" (ago), or of a date or time in UTC. Raises CliError."""
    try:
        if ago := re.fullmatch(r"(?:(\d{1,4})d)?(.*)", text):
            days, rest = ago.groups()
            if days or re.fullmatch(r"(\d+[hms])+", rest):
                return now - int(days or 0) * 86_400 - (parse_duration(rest) if rest else 0)
        found = datetime.datetime.fromisoformat(text)
        return int((found if found.tzinfo else found.replace(tzinfo=datetime.UTC)).timestamp())
    except ValueError:
        said = f"{text!r} is no time: write how long ago, as 7d or 12h, or a date and time in UTC, as 2026-11-01"
        raise exits.CliError(exits.USAGE, said) from None


def _record(cluster: Cluster, system: str, now: int) -> Record:
    try:
        record = read(cluster.list(f"/api/v1/namespaces/{system}/configmaps", USAGE_LABEL))
    except RefusedError as error:
        raise exits.CliError(
            exits.UNAVAILABLE if error.status == 0 else exits.USAGE, _next_step(error, system)
        ) from None
    notes = [f"left out, as it cannot be read: {each}" for each in record.problems]
    if not record.holdings and not record.days:
        notes.append(
            f"the operator has recorded nothing in namespace {system}; --system names that of the installation"
        )
    elif is_stale(record, now):
        known = datetime.datetime.fromtimestamp(record.until, datetime.UTC).isoformat(timespec="seconds")
        notes.append(
            f"the operator has recorded nothing since {known}, and what follows ends then; see `remotegpu doctor`"
        )
    for each in notes:
        print(f"remotegpu: {each}", file=sys.stderr)  # noqa: T201
    return record


def _pools(cluster: Cluster) -> Iterator[GPUPool]:
    """Yields the pools. If the user may not read them, yields none, and there are no prices."""
    try:
        found: list[Object] = cluster.list(f"/apis/{API_VERSION}/{POOLS}")
    except RefusedError as error:
        print(f"remotegpu: no costs, because pools cannot be read: {error}", file=sys.stderr)  # noqa: T201
        return
    yield from map(GPUPool.from_object, found)


def _next_step(error: RefusedError, system: str) -> str:
    if error.status == 403:
        return f"{error}: have somebody bind you to the Role remotegpu-usage of namespace {system}"
    return f"{error}: see `remotegpu doctor --cluster`"


def _print_csv(found: Sequence[Row], by: Sequence[By]) -> None:
    columns = ("gpu_seconds", "used_gpu_seconds", "byte_seconds", "unknown_gpu_seconds", "cost")
    _write_csv(
        (*by, *columns),
        (
            [*each.by.values(), *("" if (v := getattr(each, name)) is None else str(v) for name in columns)]
            for each in found
        ),
    )


def _write_csv(header: Iterable[str], lines: Iterable[Sequence[str]]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(lines)


def _print_table(found: Sequence[Row], by: Sequence[By]) -> None:
    shown = new_table(*(each.upper() for each in by), "GPU HOURS", "USED", "GIB HOURS", "NOT KNOWN", "COST")
    for each in found:
        used = f"{100 * each.used_gpu_seconds / each.gpu_seconds:.0f} %" if each.gpu_seconds else "-"
        add_row(
            shown,
            *(value or "-" for value in each.by.values()),
            f"{each.gpu_seconds / _HOUR:.2f}",
            used,
            f"{each.byte_seconds / _GIB / _HOUR:.2f}",
            f"{each.unknown_gpu_seconds / _HOUR:.2f}",
            "-" if each.cost is None else f"{each.cost:.2f}",
        )
    console().print(shown)
