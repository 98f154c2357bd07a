"""`python -m remotegpu_deviceplugin`: advertises resources to the kubelet and mounts the client into containers."""

import argparse
import asyncio
import logging
import os
import secrets
import signal
import sys
from pathlib import Path
from typing import Final

from kubernetes.aio import client, config

from remotegpu.api.kubernetes import POOLS
from remotegpu.paths import find_dist
from remotegpu_deviceplugin import files, handover, health, kubelet, node, status, watching
from remotegpu_deviceplugin.devices import Pools

_log = logging.getLogger(__name__)

# Delay before unused files are removed: the kubelet may not have saved the last answers of the previous plugin yet.
_SETTLED_SECONDS: Final = 5.0
# Time to wait for the next plugin: its image is on the node, so it starts in seconds. The grace period of the pod must
# be longer.
PATIENCE_SECONDS: Final = 15


async def serve(options: argparse.Namespace, ending: asyncio.Event) -> None:
    """Serves the kubelet until `ending` is set, and then waits at most `options.patience` seconds for a successor."""
    version = files.install(find_dist().pod, options.files)
    this = node.Node(version, files.local_sockets(options.files), options.files / node.MEMORY)
    await this.start()
    instance = secrets.token_hex(4)
    endpoints = [kubelet.Endpoint(plugin, instance, options.kubelet) for plugin in this.plugins]

    async def learn() -> None:
        async with client.ApiClient() as api:
            async for found in watching.snapshots(client.CustomObjectsApi(api), POOLS):
                await this.learn(Pools.from_objects(found))

    async def judge() -> None:
        async with client.ApiClient() as api:
            await health.watch(client.CustomObjectsApi(api), options.kubelet / files.CHECKPOINT, this.judge)

    async def register() -> None:
        for endpoint in endpoints:
            await endpoint.register()

    async def succeed() -> None:
        for plugin in this.plugins:
            await plugin.is_watched()
        async with asyncio.TaskGroup() as group:
            group.create_task(handover.Successor(options.files, instance, register).serve())
            await asyncio.sleep(_SETTLED_SECONDS)
            files.remove_unused(options.files, version, options.kubelet / files.CHECKPOINT)

    async with status.served(options.http, this.plugins), asyncio.TaskGroup() as group:
        working = [group.create_task(endpoint.hold()) for endpoint in endpoints]
        working += [group.create_task(learn()), group.create_task(judge())]
        succeeding = group.create_task(succeed())
        await ending.wait()
        succeeding.cancel()
        await asyncio.wait([succeeding])
        if await handover.hand_over(options.files, options.kubelet, options.patience):
            for endpoint in endpoints:
                endpoint.leave()
            _log.info("handed over to another plugin")
            logging.shutdown()
            os._exit(0)
        for task in working:
            task.cancel()


async def _main(options: argparse.Namespace) -> None:
    if os.environ.get("KUBECONFIG"):
        await config.load_kube_config()
    else:
        config.load_incluster_config()
    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    await serve(options, ending)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="remotegpu_deviceplugin", description=__doc__)
    parser.add_argument("--kubelet", type=Path, default=kubelet.FOLDER, metavar="FOLDER", help="default: %(default)s")
    parser.add_argument(
        "--files", type=Path, default=Path("/var/lib/remotegpu/client"), metavar="FOLDER",
        help="where the node keeps the client's files, under the same path as here; default: %(default)s",
    )  # fmt: skip
    parser.add_argument(
        "--http", default=":8080", metavar="[ADDRESS]:PORT",
        help="/healthz, /readyz and /metrics; without an address on all, of IPv4 and IPv6; default: %(default)s",
    )  # fmt: skip
    parser.add_argument(
        "--patience", type=float, default=PATIENCE_SECONDS, metavar="SECONDS",
        help="how long to serve on after SIGTERM, until another plugin of this node takes over; default: %(default)s",
    )  # fmt: skip
    return parser


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        asyncio.run(_main(parser().parse_args()))
    except files.InstallError as error:
        _log.error("%s", error)
        sys.exit(1)


if __name__ == "__main__":
    main()
