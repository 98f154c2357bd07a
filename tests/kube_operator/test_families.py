"""Tests that all our servers are reachable in pods with only IPv4, only IPv6, or both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# Runs in its own network namespace: starts each server, and sends it a request at every address.
PROGRAM = """
import asyncio, sys
from pathlib import Path
import aiohttp
from remotegpu_deviceplugin import __main__ as plugin
from remotegpu_deviceplugin.status import served
from remotegpu_operator.dashboard import serving as dashboard
from remotegpu_operator.serving import probes
from remotegpu_operator.settings import Settings
from remotegpu_operator.webhook import __main__ as webhook
from remotegpu_operator.webhook.server import Certificate, Webhook, serving

async def reached(session, address):
    # The dashboard begins in a thread of its own, a moment later.
    while True:
        try:
            async with session.get(address) as answer:
                return answer.status
        except aiohttp.ClientConnectorError:
            await asyncio.sleep(0.05)

async def main(hosts):
    options = webhook.parser().parse_args([])
    hook = Webhook(Certificate(Path("/nowhere")))
    async with (
        probes.serve(8081, lambda: ""),
        serving(hook, options.host, 9443, options.http_port),
        served(plugin.parser().parse_args([]).http.replace("8080", "8082"), []),
        dashboard.serving(Settings("n", "p", "image", "Always", dashboard_port=8083)),
        aiohttp.ClientSession() as session,
    ):
        for host in hosts:
            for port in (options.http_port, 8081, 8082):
                async with session.get(f"http://{host}:{port}/healthz") as answer:
                    assert answer.status == 200, (host, port)
            # It waits for an API server, of which there is none here; what it says of itself needs none.
            assert await reached(session, f"http://{host}:8083/api/about") == 200, host
            # The webhook's port for admission: TLS without a certificate comes to no end, but somebody listens.
            _, writer = await asyncio.open_connection(host.strip("[]"), 9443)
            writer.close()
    print("reached", *hosts)

asyncio.run(main(sys.argv[1:]))
"""
# A kubeconfig for an API server that does not exist: the network namespace is empty.
KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "c", "cluster": {"server": "https://localhost:1"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    "current-context": "c",
}
BOTH = "ip link set lo up"
FAMILIES = {
    "IPv4 alone": (f"{BOTH} && echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6", ("127.0.0.1",)),
    "IPv6 alone": (f"{BOTH} && ip address delete 127.0.0.1/8 dev lo", ("[::1]",)),
    "both": (BOTH, ("127.0.0.1", "[::1]")),
}


@pytest.mark.skipif(os.geteuid() != 0, reason="a network of its own needs root")
@pytest.mark.parametrize("family", FAMILIES)
def test_servers_are_reached_by_every_address_that_a_pod_has(family: str, tmp_path: Path) -> None:
    made, hosts = FAMILIES[family]
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(KUBECONFIG))
    command = ["unshare", "--net", "sh", "-c", f'{made} && exec "$@"', "sh", sys.executable, "-c", PROGRAM, *hosts]
    env = os.environ | {"KUBECONFIG": str(kubeconfig)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert done.stdout == f"reached {' '.join(hosts)}\n", done.stderr
