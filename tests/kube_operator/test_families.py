"""The servers of our parts are reachable in pods that have only IPv4, only IPv6, or both."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# In a network of its own: each server, and a request to it by every address that there is.
PROGRAM = """
import asyncio, sys
from pathlib import Path
import aiohttp
from remotegpu_deviceplugin import __main__ as plugin
from remotegpu_deviceplugin.status import served
from remotegpu_operator.serving import probes
from remotegpu_operator.webhook import __main__ as webhook
from remotegpu_operator.webhook.server import Certificate, Webhook, serving

async def main(hosts):
    options = webhook.parser().parse_args([])
    hook = Webhook(Certificate(Path("/nowhere")))
    async with (
        probes.serve(8081, lambda: ""),
        serving(hook, options.host, 9443, options.http_port),
        served(plugin.parser().parse_args([]).http.replace("8080", "8082"), []),
        aiohttp.ClientSession() as session,
    ):
        for host in hosts:
            for port in (options.http_port, 8081, 8082):
                async with session.get(f"http://{host}:{port}/healthz") as answer:
                    assert answer.status == 200, (host, port)
            # Its port for admission: TLS without a certificate comes to no end, but somebody listens.
            _, writer = await asyncio.open_connection(host.strip("[]"), 9443)
            writer.close()
    print("reached", *hosts)

asyncio.run(main(sys.argv[1:]))
"""
BOTH = "ip link set lo up"
FAMILIES = {
    "IPv4 alone": (f"{BOTH} && echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6", ("127.0.0.1",)),
    "IPv6 alone": (f"{BOTH} && ip address delete 127.0.0.1/8 dev lo", ("[::1]",)),
    "both": (BOTH, ("127.0.0.1", "[::1]")),
}


@pytest.mark.skipif(os.geteuid() != 0, reason="a network of its own needs root")
@pytest.mark.parametrize("family", FAMILIES)
def test_servers_are_reached_by_every_address_that_a_pod_has(family: str) -> None:
    made, hosts = FAMILIES[family]
    command = ["unshare", "--net", "sh", "-c", f'{made} && exec "$@"', "sh", sys.executable, "-c", PROGRAM, *hosts]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == f"reached {' '.join(hosts)}\n", done.stderr
