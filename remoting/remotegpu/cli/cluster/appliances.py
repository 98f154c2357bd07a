"""Cordons and drains appliances of a cluster's pools. A cordoned appliance gets no new claims."""

import time
from typing import Final

from remotegpu.api.claims import GPUClaim
from remotegpu.api.kubernetes import API_VERSION, CLAIMS, POOLS
from remotegpu.api.objects import readable
from remotegpu.api.pools import GPUPool
from remotegpu.cli import exits
from remotegpu.cli.cluster.claims import places, refusals
from remotegpu.cli.cluster.objects import Cluster, Object, RefusedError
from remotegpu.cli.output import console, say

_PATH: Final = f"/apis/{API_VERSION}/{POOLS}"
_POLL_SECONDS: Final = 1.0
_CONFLICT: Final = 409


def cordon(cluster: Cluster, name: str, *, on: bool) -> None:
    """Adds the appliance's node to `spec.cordoned` of its pool, or removes it. Raises CliError."""
    with refusals():
        while not _cordoned(cluster, name, on=on):
            pass
    said = "gets no new claims" if on else "gets new claims again"
    say(console(), f"{name} {said}")


def drain(cluster: Cluster, name: str) -> None:
    """Cordons an appliance and waits until it has no claims. Prints each change of the claims. Raises CliError."""
    cordon(cluster, name, on=True)
    out, told = console(), [""]
    with refusals():
        while left := _claims_on(cluster, name):
            lines = [f"{each.key}: {_stays(each)}" for each in left]
            if lines != told:
                for line in lines:
                    say(out, line)
                told = lines
            time.sleep(_POLL_SECONDS)
    say(out, f"no claim is on {name}")


def _cordoned(cluster: Cluster, name: str, *, on: bool) -> bool:
    """Stores the change. Returns False if another client changed the pool meanwhile, so that the caller can retry."""
    pool, node = _find(cluster, name)
    nodes = set(GPUPool.from_object(pool).spec.cordoned)
    wanted = nodes | {node} if on else nodes - {node}
    if wanted == nodes:
        return True
    version = pool["metadata"]["resourceVersion"]
    body = {"metadata": {"resourceVersion": version}, "spec": {"cordoned": sorted(wanted) or None}}
    try:
        cluster.patch(f"{_PATH}/{pool['metadata']['name']}", body)
    except RefusedError as error:
        if error.status != _CONFLICT:
            raise
        return False
    return True


def _find(cluster: Cluster, name: str) -> tuple[Object, str]:
    """Returns the pool and the node of an appliance. Raises CliError if there is no such appliance."""
    stored = cluster.list(_PATH)
    by_name = {pool["metadata"]["name"]: pool for pool in stored}
    for pool in readable(GPUPool.from_object, stored):
        for appliance in pool.status.appliances:
            if appliance.name == name:
                return by_name[pool.name], appliance.node
    raise exits.CliError(exits.USAGE, f"no pool has an appliance {name!r}; `kubectl remotegpu ls` names them")


def _claims_on(cluster: Cluster, name: str) -> list[GPUClaim]:
    claims = readable(GPUClaim.from_object, cluster.list(f"/apis/{API_VERSION}/{CLAIMS}"))
    return sorted((claim for claim in claims if name in places(claim)), key=lambda claim: claim.key)


def _stays(claim: GPUClaim) -> str:
    if not claim.spec.movable and not claim.spec.appliance:
        return "is not movable, and stays until it ends or `kubectl remotegpu migrate` moves it"
    return f"{claim.status.reason}: {claim.status.message}"
