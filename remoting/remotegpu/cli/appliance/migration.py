"""The command `migrate`."""

from collections.abc import Sequence

from remotegpu.api.quantities import format_bytes
from remotegpu.cli.appliance.suspension import find_lease, follow
from remotegpu.rpc.client import Access, ApplianceClient, parse_endpoint


def migrate(appliances: Sequence[str], access: Access, lease: str, to: str) -> None:
    """Moves a lease to the appliance `to`. Raises CliError and ApplianceError.

    The address must be valid on this machine, on the lease's appliance, and for the programs that use the lease.
    """
    other = ApplianceClient(parse_endpoint(to), access)
    try:
        client, lease_id = find_lease(appliances, access, lease)
        done = follow(client, client.move_lease(lease_id, other, other.invite_lease()), lease)
    finally:
        other.close()
    size = format_bytes(done.image_bytes)
    print(f"moved {lease} to {other.endpoint}: {size} in {done.seconds:.1f} s; its programs continue there")  # noqa: T201
