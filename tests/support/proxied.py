"""Programs whose appliance is behind proxies."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

from support.faultproxy import FaultProxy
from support.system import DIST, REMOTEGPU, Appliance, again_and_again

# The proxies' address: the ports are the appliance's own.
BEHIND_PROXIES = "127.0.0.2"
EVERY_SECONDS = 0.2


@contextlib.contextmanager
def before_data(
    remote: Appliance, tap: Callable[[bytes], None] = lambda _: None, carrier: str = "direct"
) -> Iterator[FaultProxy]:
    """A proxy before each port; that of the data is the value, by this carrier: gRPC takes them to the control port."""
    host, _, port = remote.endpoint.rpartition(":")
    control, data = (
        FaultProxy(host, number, listen_host=BEHIND_PROXIES, listen_port=number, tap=tap)
        for number in (int(port), int(port) + 1)
    )
    with control, data:
        yield control if carrier == "grpc" else data


@contextlib.contextmanager
def delayed(remote: Appliance, milliseconds: float) -> Iterator[None]:
    """A proxy before each port, in a process of its own, which delays by fractions of a ms each way."""
    port = int(remote.endpoint.rpartition(":")[2])
    routes = [f"{BEHIND_PROXIES}:{one}=127.0.0.1:{one}" for one in (port, port + 1)]
    words = [str(DIST / "bin" / "remotegpu-bench"), "delay-proxy", str(milliseconds), *routes]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as proxy:
        assert proxy.stdout is not None
        assert proxy.stdout.readline().strip() == "ready"
        yield
        # It ends with its input, which leaving the block closes.


def command(remote: Appliance, *program: str, share: str = "0.25", options: tuple[str, ...] = ()) -> list[str]:
    """Runs a program on a share of the appliance, by the proxies before it."""
    endpoint = f"{BEHIND_PROXIES}:{remote.endpoint.rpartition(':')[2]}"
    return [REMOTEGPU, "run", "--appliance", endpoint, "-p", share, *options, "--", *program]


def run(
    remote: Appliance, *program: str, options: tuple[str, ...] = (), carrier: str = "direct"
) -> subprocess.Popen[str]:
    words = command(remote, sys.executable, *program, options=options)
    environment = {**os.environ, "REMOTEGPU_CARRIER": carrier}
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def reach(remote: Appliance, *options: str) -> None:
    """Wait for an appliance whose certificate is for the proxies' address."""
    remote.endpoint, own = f"{BEHIND_PROXIES}:{remote.endpoint.rpartition(':')[2]}", remote.endpoint
    remote.wait_until_ready(*options)
    remote.endpoint = own


@contextlib.contextmanager
def cut_often(proxy: FaultProxy) -> Iterator[list[int]]:
    """Cuts all connections every 200 ms; the list gets an entry for each time."""

    def cut(cuts: list[int]) -> None:
        proxy.cut()
        cuts.append(len(cuts))

    with again_and_again(EVERY_SECONDS, cut) as cuts:
        yield cuts
