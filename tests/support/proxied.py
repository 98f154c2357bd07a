"""Runs programs whose appliance is behind proxies."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

from support.faultproxy import FaultProxy
from support.system import DIST, REMOTEGPU, Appliance, again_and_again

# The address of the proxies, which have the same ports as the appliance.
BEHIND_PROXIES = "127.0.0.2"
EVERY_SECONDS = 0.2


@contextlib.contextmanager
def before_data(
    remote: Appliance, tap: Callable[[bytes], None] = lambda _: None, carrier: str = "direct"
) -> Iterator[FaultProxy]:
    """Runs a proxy before each port. Yields the proxy of the carrier's data; gRPC sends data to the control port."""
    host, _, port = remote.endpoint.rpartition(":")
    control, data = (
        FaultProxy(host, number, listen_host=BEHIND_PROXIES, listen_port=number, tap=tap)
        for number in (int(port), int(port) + 1)
    )
    with control, data:
        yield control if carrier == "grpc" else data


@contextlib.contextmanager
def delayed(remote: Appliance, milliseconds: float) -> Iterator[None]:
    """Runs a proxy before each port, in another process. It can delay by fractions of a millisecond each way."""
    port = int(remote.endpoint.rpartition(":")[2])
    routes = [f"{BEHIND_PROXIES}:{one}=127.0.0.1:{one}" for one in (port, port + 1)]
    words = [str(DIST / "bin" / "remotegpu-bench"), "delay-proxy", str(milliseconds), *routes]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as proxy:
        assert proxy.stdout is not None
        assert proxy.stdout.readline().strip() == "ready"
        yield
        # The end of the outer block closes the proxy's stdin, which ends it.


def command(remote: Appliance, *program: str, share: str = "0.25", options: tuple[str, ...] = ()) -> list[str]:
    """Returns the command that runs a program on a share of the appliance through the proxies."""
    endpoint = f"{BEHIND_PROXIES}:{remote.endpoint.rpartition(':')[2]}"
    return [REMOTEGPU, "run", "--appliance", endpoint, "-p", share, *options, "--", *program]


def run(
    remote: Appliance, *program: str, options: tuple[str, ...] = (), carrier: str = "direct"
) -> subprocess.Popen[str]:
    words = command(remote, sys.executable, *program, options=options)
    environment = {**os.environ, "REMOTEGPU_CARRIER": carrier}
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def reach(remote: Appliance, *options: str) -> None:
    """Waits for an appliance whose certificate is for the proxies' address."""
    remote.endpoint, own = f"{BEHIND_PROXIES}:{remote.endpoint.rpartition(':')[2]}", remote.endpoint
    remote.wait_until_ready(*options)
    remote.endpoint = own


@contextlib.contextmanager
def cut_often(proxy: FaultProxy) -> Iterator[list[int]]:
    """Resets all connections every 200 ms during the block. The list gets an entry for each time."""

    def cut(cuts: list[int]) -> None:
        proxy.cut()
        cuts.append(len(cuts))

    with again_and_again(EVERY_SECONDS, cut) as cuts:
        yield cuts
