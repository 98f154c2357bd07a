"""`remotegpu offload stats`, `switch` and `backends`: list and move this user's sessions, and list environments."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from remotegpu.api.quantities import format_bytes
from remotegpu.cli import exits, output, show
from remotegpu.rpc.client import Access
from remotegpu_offload.client import control
from remotegpu_offload.wire import OffloadError

# Moving gigabytes takes long, and the session itself reports failures.
_SWITCH_SECONDS = 3600.0
_ASK_SECONDS = 30.0


def stats(session: str | None, *, as_json: bool) -> None:
    """Prints all sessions of this user, or one in detail.

    Raises:
        CliError: the session does not exist or does not answer.
    """
    try:
        if session is not None:
            one = control.ask(session, _ASK_SECONDS, op="stats")
            output.print_json(one) if as_json else _print_one(one)
            return
        found = list(control.sessions())
    except OffloadError as error:
        raise _failure(error) from None
    if as_json:
        output.print_json({"sessions": found})
    elif not found:
        print("no sessions of this user")  # noqa: T201
    else:
        table = _table("SESSION", "PID", "WHERE", "ENVIRONMENT", "BACKEND", "MOVES", "STATE")
        for one in found:
            if "error" in one:
                table.add_row(one["id"], "", "", "", "", "", one["error"])
                continue
            environment = one["environment"]
            state = "lost" if one["lost"] else "runs"
            columns = (one["pid"], one["place"], environment["name"], environment["backend"], one["moves"])
            table.add_row(one["id"], *map(str, columns), state)
        output.console().print(table)


def switch(session: str, backend: str | None, environment: str | None, timeout: float | None, *, as_json: bool) -> None:
    """Moves a session; returns when the program runs on the other acceptor.

    Raises:
        CliError: the session or the acceptor does not exist; the session stays at its acceptor.
    """
    try:
        moved = control.ask(
            session, _SWITCH_SECONDS, op="switch", backend=backend, environment=environment, timeout=timeout
        )
    except OffloadError as error:
        raise _failure(error) from None
    if as_json:
        output.print_json(moved)
    else:
        print(f"{session} runs at {moved['place']}")  # noqa: T201


def backends(appliances: Sequence[str], access: Access, *, as_json: bool) -> None:
    """Prints the environments of the appliances.

    Raises:
        ApplianceError: an appliance does not answer.
    """
    found = show.inventories(appliances, access)
    if as_json:
        described = [show.describe(endpoint, inventory) for endpoint, inventory in found]
        output.print_json(
            {"appliances": [{key: one[key] for key in ("endpoint", "environments")} for one in described]}
        )
    elif not show.print_environments(output.console(), found):
        print("no environments: start the appliance with --offload")  # noqa: T201


def _print_one(one: dict[str, Any]) -> None:
    counters = one["counters"]
    table = _table("", "")
    table.show_header = False
    table.add_row("where", one["place"])
    table.add_row("program", f"pid {one['pid']}")
    table.add_row("moves", str(one["moves"]))
    table.add_row("round trips", _counted(counters["round_trips"], counters["by_service"]))
    table.add_row("notices", str(counters["notices"]))
    table.add_row("asked by the acceptor", _counted(sum(counters["served"].values()), counters["served"]))
    table.add_row("sent, received", f"{format_bytes(counters['bytes_out'])}, {format_bytes(counters['bytes_in'])}")
    acceptor = one["acceptor"]
    if acceptor is None:
        table.add_row("acceptor", "is gone" if one["lost"] else "does not answer")
    else:
        most = format_bytes(acceptor["most_memory_bytes"])
        table.add_row("memory there", f"{format_bytes(acceptor['memory_bytes'])}, at most {most}")
    output.console().print(table)


def _counted(total: int, groups: dict[str, int]) -> str:
    parts = ", ".join(f"{name.lower()} {count}" for name, count in sorted(groups.items()) if count)
    return f"{total} ({parts})" if parts else str(total)


def _failure(error: OffloadError) -> exits.CliError:
    unknown = isinstance(error, control.UnknownSessionError)
    return exits.CliError(exits.USAGE if unknown else exits.UNAVAILABLE, str(error))


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
