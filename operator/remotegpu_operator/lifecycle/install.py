"""The chart's hook after install and upgrade: makes the GPUPools match the chart's values.

Helm cannot create the pools. It looks up the kind of every object before it creates the first one, so a chart cannot
contain a CustomResourceDefinition and an object of this kind. Pools that people create with kubectl stay unchanged.
"""

import asyncio
import logging
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from remotegpu.api.kubernetes import API_VERSION, MANAGER_LABEL, NAME_LABEL, POOLS
from remotegpu_operator.cluster.kube import Api, ApiError, Object, Resource, Unanswered, configuration

_log = logging.getLogger(__name__)

GPUPOOLS: Final = Resource(API_VERSION, POOLS, "GPUPool")
CHART_POOLS: Final = f"{NAME_LABEL}=remotegpu,{MANAGER_LABEL}=Helm"
POOLS_FILE: Final = Path("/etc/remotegpu/install/pools.yaml")
# The longest time between the creation of a CustomResourceDefinition and its first use.
_SERVED_SECONDS: Final = 60.0


async def apply_pools(api: Api, wanted: list[Object]) -> None:
    """Applies every pool in `wanted`, and deletes the pools of earlier values of the chart."""
    for pool in wanted:
        await api.apply(GPUPOOLS, None, pool)
        _log.info("pool %s is as the chart's values say", pool["metadata"]["name"])
    names = {pool["metadata"]["name"] for pool in wanted}
    for pool in (await api.list(GPUPOOLS, labels=CHART_POOLS))[0]:
        if pool["metadata"]["name"] not in names:
            await api.delete(GPUPOOLS, None, pool["metadata"]["name"], pool["metadata"]["uid"])
            _log.info("pool %s is no longer in the chart's values and was deleted", pool["metadata"]["name"])


async def _until_served(api: Api) -> None:
    async with asyncio.timeout(_SERVED_SECONDS):
        while True:
            try:
                await api.list(GPUPOOLS)
            except ApiError as error:
                if not error.gone:
                    raise
            except Unanswered as error:
                _log.info("the API server does not answer: %r", error)
            else:
                return
            await asyncio.sleep(1)


async def run(pools: list[Object], found: Any = None) -> None:
    async with Api(found or await configuration()) as api:
        try:
            await _until_served(api)
        except TimeoutError:
            raise SystemExit(
                "the API server knows no GPUPool: set the chart's value crds.enabled, or apply the folder crds/ first"
            ) from None
        try:
            await apply_pools(api, pools)
        except ApiError as error:
            raise SystemExit(f"{error}; correct the chart's value `pools`") from error


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    asyncio.run(run(yaml.safe_load(POOLS_FILE.read_text()) or []))


if __name__ == "__main__":
    main()
