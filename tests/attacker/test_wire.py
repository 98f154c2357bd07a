"""An eavesdropper between client and appliance: with TLS it finds no run of a tensor's bytes."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509
from support.certificates import certificate
from support.faultproxy import FaultProxy
from support.system import PROGRAMS, REMOTEGPU, Appliance

# Where the proxies listen, on the appliance's own ports.
BETWEEN = "127.0.0.2"
SEED, COUNT, RUN = 20261125, 1 << 18, 8


@contextlib.contextmanager
def listened_to(appliance: Appliance) -> Iterator[bytearray]:
    """All bytes of both ports, both ways."""
    heard = bytearray()
    host, _, port = appliance.endpoint.rpartition(":")
    with contextlib.ExitStack() as stack:
        for number in (int(port), int(port) + 1):
            proxy = FaultProxy(host, number, listen_host=BETWEEN, listen_port=number, tap=heard.extend)
            stack.enter_context(proxy)
        yield heard


def runs_found(heard: bytes, tensor: bytes) -> int:
    """Counts the eight-byte runs of `heard` that also occur in the tensor, at any offset.

    By chance it is 0: there are some 2^38 pairs, and one in 2^64 would be equal.
    """

    def runs(data: bytes) -> np.ndarray:
        return np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), RUN).copy().view(np.uint64)

    return int(np.isin(runs(heard), runs(tensor)).sum())


@pytest.mark.parametrize("carrier", ["direct", "grpc"])
@pytest.mark.parametrize("tls", [True, False], ids=["tls", "control-without-tls"])
def test_no_run_of_a_tensor_is_on_the_wire(tls: bool, carrier: str, tmp_path: Path) -> None:
    certificate(tmp_path, "between", x509.IPAddress(ipaddress.ip_address(BETWEEN)))
    options: tuple[str, ...] = ()
    access: tuple[str, ...] = ()
    if tls:
        options = ("--cert", str(tmp_path / "between.pem"), "--key", str(tmp_path / "between.key"))
        access = ("--ca", str(tmp_path / "between.pem"))
    it = Appliance(*options)
    try:
        it.wait_until_ready(*access, *(("--server-name", BETWEEN) if tls else ()))
        with listened_to(it) as heard:
            at = f"{BETWEEN}:{it.endpoint.rpartition(':')[2]}"
            program = [sys.executable, str(PROGRAMS / "echo_tensor.py"), str(SEED), str(COUNT)]
            done = subprocess.run(
                [REMOTEGPU, "run", "--appliance", at, *access, "-p", "0.25", "--", *program],
                capture_output=True, text=True, timeout=100, env=os.environ | {"REMOTEGPU_CARRIER": carrier},
            )  # fmt: skip
    finally:
        it.stop()
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    assert len(heard) > 2 * COUNT, "it went through, both ways"
    found = runs_found(bytes(heard), np.random.default_rng(SEED).bytes(COUNT))
    if tls:
        assert found == 0
    else:
        assert found > COUNT, "the same search finds it where nothing is hidden"
