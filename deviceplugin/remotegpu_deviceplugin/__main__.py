"""`python -m remotegpu_deviceplugin`: advertises the pools on this node and mounts the client into containers."""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
from pathlib import Path

from kubernetes.aio import client, config

from remotegpu.api.kubernetes import CLIENT, MILLI
from remotegpu.paths import find_dist
from remotegpu_deviceplugin import files, kubelet, memory, pools
from remotegpu_deviceplugin.devices import CLIENTS, MOST_DEVICES, Pools, fitting
from remotegpu_deviceplugin.injection import answer
from remotegpu_deviceplugin.kubelet import Endpoint
from remotegpu_deviceplugin.plugin import Plugin

_log = logging.getLogger("remotegpu_deviceplugin")


async def serve(kubelet_folder: Path, host_folder: Path) -> None:
    """Until cancelled."""
    version = files.install(find_dist().pod, host_folder)
    files.remove_unused(host_folder, version, kubelet_folder / files.CHECKPOINT)
    kept = host_folder / "pools.json"
    known = memory.recall(kept)

    # With no pool known no pod has a share; what such a container is given then makes no difference.
    plugins = [
        Plugin(name, lambda: answer(version, keep_ptx=known is None or known.software)) for name in (MILLI, CLIENT)
    ]
    milli, clients = plugins
    await clients.advertise(CLIENTS)
    if known is not None:
        await milli.advertise(fitting(known.wanted))

    async def learn() -> None:
        nonlocal known
        async with client.ApiClient() as api:
            async for found in pools.follow(client.CustomObjectsApi(api)):
                grown = found.since(known)
                if grown != known:
                    memory.remember(kept, grown)
                    known = grown
                    _report(grown)
                    await milli.advertise(fitting(grown.wanted))

    async with asyncio.TaskGroup() as group:
        group.create_task(learn())
        for plugin in plugins:
            group.create_task(Endpoint(plugin, kubelet_folder).hold())


def _report(known: Pools) -> None:
    advertised = fitting(known.wanted)
    _log.info("the pools have %s thousandths of a GPU, this node advertises %s", known.milli, advertised)
    if advertised < known.wanted:
        _log.warning(
            "the kubelet takes at most %s devices in one message, so this node advertises %s of %s instead of %s; it "
            "limits only what the pods of this one node use together",
            MOST_DEVICES, advertised, MILLI, known.wanted,
        )  # fmt: skip


async def _main(options: argparse.Namespace) -> None:
    if os.environ.get("KUBECONFIG"):
        await config.load_kube_config()
    else:
        config.load_incluster_config()
    serving = asyncio.create_task(serve(options.kubelet, options.files))
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
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
