"""Names for shell completion; none if no server answers."""

import contextlib

import typer


def leases(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Returns leases, with their clients, of the appliances that the options or the environment name."""
    from remotegpu.api.failures import ApplianceError  # noqa: PLC0415
    from remotegpu.cli import exits  # noqa: PLC0415 (only when a completion is requested)
    from remotegpu.cli.options import read_access, split  # noqa: PLC0415
    from remotegpu.cli.show import inventories  # noqa: PLC0415

    given = context.params
    with contextlib.suppress(ApplianceError, exits.CliError):
        access = read_access(given["token"], given["token_file"], given["ca"], given["server_name"])
        found = inventories(split(given["appliance"]), access)
        all_of_them = [lease for _, inventory in found for lease in inventory.leases]
        return [(each.lease_id[:8], each.client) for each in all_of_them if each.lease_id.startswith(incomplete)]
    return []


def pods_or_claims(context: typer.Context, incomplete: str) -> list[str]:
    """Returns pods or claims of the namespace and cluster that the options name."""
    from remotegpu.cli import exits  # noqa: PLC0415
    from remotegpu.cli.cluster import claims  # noqa: PLC0415
    from remotegpu.cli.cluster.objects import Cluster, RefusedError  # noqa: PLC0415

    given = context.params
    with contextlib.suppress(RefusedError, exits.CliError):
        cluster = Cluster(given["kubeconfig"], given["context"])
        found = claims.pods_or_claims(cluster, given["namespace"] or cluster.namespace, claims=given["claim"])
        return [name for name in found if name.startswith(incomplete)]
    return []
