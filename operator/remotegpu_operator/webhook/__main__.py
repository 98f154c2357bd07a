"""`python -m remotegpu_operator.webhook`: runs one replica of the webhook until SIGTERM."""

import argparse
import asyncio
import logging
import signal
from pathlib import Path

from remotegpu_operator.serving.probes import EVERYWHERE
from remotegpu_operator.webhook.server import Certificate, Webhook, serving

# The time to continue after SIGTERM: kube-proxy sends connections until every node knows that this replica ends.
DRAIN_SECONDS = 5.0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Rewrites pods and pod templates that ask for a share of a GPU.")
    parser.add_argument("--host", default=EVERYWHERE, help="address to listen on; default: all, of IPv4 and IPv6")
    parser.add_argument("--port", type=int, default=9443, help="admission requests, over TLS")
    parser.add_argument("--http-port", type=int, default=8080, help="/healthz, /readyz and /metrics")
    parser.add_argument("--tls", type=Path, default=Path("/etc/remotegpu/tls"), help="folder of tls.crt and tls.key")
    parser.add_argument("--drain", type=float, default=DRAIN_SECONDS, help="seconds to go on serving after SIGTERM")
    parser.add_argument("--reuse-port", action="store_true", help="share --port with other processes of this machine")
    return parser


def main() -> None:
    arguments = parser().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    asyncio.run(_serve(arguments))


async def _serve(arguments: argparse.Namespace) -> None:
    webhook = Webhook(Certificate(arguments.tls))
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serving(webhook, arguments.host, arguments.port, arguments.http_port, arguments.reuse_port):
        logging.info("admission on port %d, health and metrics on %d", arguments.port, arguments.http_port)
        await stop.wait()
        webhook.stopping = True
        await asyncio.sleep(arguments.drain)


if __name__ == "__main__":
    main()
