"""The commands `suspend`, `resume` and `resize`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Final

from remotegpu.api.quantities import Ask, format_bytes
from remotegpu.cli import exits
from remotegpu.cli.appliance.waiting import WaitNotice
from remotegpu.rpc import pb
from remotegpu.rpc.client import Access, ApplianceClient, parse_endpoint

_LEAST_LETTERS: Final = 4

_Progress = AbstractContextManager[Iterator[pb.Progress]]


def suspend(appliances: Sequence[str], access: Access, lease: str) -> None:
    done = _change(appliances, access, lease, ApplianceClient.suspend_lease)
    print(  # noqa: T201
        f"suspended {lease}: {format_bytes(done.image_bytes)} are kept on the appliance, after {done.seconds:.1f} s; "
        f"`remotegpu resume {lease}` brings them back"
    )


def resume(appliances: Sequence[str], access: Access, lease: str) -> None:
    done = _change(appliances, access, lease, ApplianceClient.resume_lease)
    print(f"resumed {lease}: {format_bytes(done.image_bytes)} brought back, after {done.seconds:.1f} s")  # noqa: T201


def resize(appliances: Sequence[str], access: Access, lease: str, ask: Ask) -> None:
    client, lease_id = find_lease(appliances, access, lease)
    try:
        done = client.resize_lease(lease_id, ask)
    finally:
        client.close()
    before, after = format_bytes(done.before_bytes), format_bytes(done.memory_bytes)
    print(f"resized {lease}: {after} of each of its GPUs, where it had {before}")  # noqa: T201


def _change(
    appliances: Sequence[str], access: Access, lease: str, change: Callable[[ApplianceClient, str], _Progress]
) -> pb.Done:
    client, lease_id = find_lease(appliances, access, lease)
    return follow(client, change(client, lease_id), lease)


def follow(client: ApplianceClient, progress: _Progress, lease: str) -> pb.Done:
    """Shows the progress of a change on stderr, and returns its result. Closes the client."""
    notice = WaitNotice(f"for {lease}")
    try:
        with progress as events:
            for event in events:
                if event.HasField("done"):
                    return event.done
                notice.show(event.waiting.reason)
    finally:
        notice.end()
        client.close()
    raise exits.CliError(exits.UNAVAILABLE, f"{client.endpoint} did not say that it is done: look with `remotegpu smi`")


def find_lease(appliances: Sequence[str], access: Access, lease: str) -> tuple[ApplianceClient, str]:
    """Returns a client of the appliance and the id of the only lease whose id begins with `lease`. Raises CliError."""
    if len(lease) < _LEAST_LETTERS:
        raise exits.CliError(exits.USAGE, f"{lease!r} is too short for a lease: write it as `remotegpu smi` shows it")
    found = []
    for text in appliances:
        client = ApplianceClient(parse_endpoint(text), access)
        ids = [each.lease_id for each in client.inventory().leases if each.lease_id.startswith(lease)]
        if not ids:
            client.close()
        found += [(client, lease_id) for lease_id in ids]
    if len(found) == 1:
        return found[0]
    for client, _ in found:
        client.close()
    what = "no lease is" if not found else f"{len(found)} leases are"
    raise exits.CliError(exits.USAGE, f"{what} named {lease} on {', '.join(appliances)}: `remotegpu smi` lists yours")
