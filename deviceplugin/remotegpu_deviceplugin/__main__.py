"""`python -m remotegpu_deviceplugin`: advertises the pools on this node and mounts the client into containers."""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
from pathlib import Path

from kubernetes.aio import client, config

from remotegpu.paths import find_dist
from remotegpu_deviceplugin import files, kubelet, node, pools, status


async def serve(kubelet_folder: Path, host_folder: Path, http: str) -> None:
    """Until cancelled."""
    version = files.install(find_dist().pod, host_folder)
    files.remove_unused(host_folder, version, kubelet_folder / files.CHECKPOINT)
    this = node.Node(version, host_folder / node.MEMORY)
    await this.start()

    async def learn() -> None:
        async with client.ApiClient() as api:
            async for found in pools.follow(client.CustomObjectsApi(api)):
                await this.learn(found)

    async with status.served(http, this.plugins), asyncio.TaskGroup() as group:
        group.create_task(learn())
        for plugin in this.plugins:
            group.create_task(kubelet.Endpoint(plugin, kubelet_folder).hold())


async def _main(options: argparse.Namespace) -> None:
    if os.environ.get("KUBECONFIG"):
        await config.load_kube_config()
    else:
        config.load_incluster_config()
    serving = asyncio.create_task(serve(options.kubelet, options.files, options.http))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, serving.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await serving


def main() -> None:
    parser = argparse.ArgumentParser(prog="remotegpu_deviceplugin", description=__doc__)
    parser.add_argument("--kubelet", type=Path, default=kubelet.FOLDER, metavar="FOLDER", help="default: %(default)s")
    parser.add_argument(
        "--files", type=Path, default=Path("/var/lib/remotegpu/client"), metavar="FOLDER",
        help="where the node keeps the client's files, under the same path as here; default: %(default)s",
    )  # fmt: skip
    parser.add_argument(
        "--http", default="0.0.0.0:8080", metavar="ADDRESS:PORT",
        help="/healthz, /readyz and /metrics; default: %(default)s",
    )  # fmt: skip
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
