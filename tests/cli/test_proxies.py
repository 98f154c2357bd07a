"""Proxies of the environment are for the web: whatever they name, an appliance is reached directly."""

from __future__ import annotations

import ipaddress
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from cryptography import x509
from support.certificates import certificate
from support.system import PROGRAMS, REMOTEGPU, REMOTEGPU_RUN, Appliance, free_port

from remotegpu.api.names import APPLIANCE_ENV, CA_ENV

PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")
SHARE = ("-p", "0.25", "--", sys.executable, str(PROGRAMS / "vector_add.py"))


@pytest.fixture(scope="module", params=["tcp", "grpc", "tls"])
def environment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Names an appliance, and for every proxy a port on which nothing listens."""
    folder = tmp_path_factory.mktemp("proxies")
    nobody = f"http://127.0.0.1:{free_port()}"
    found = {name: value for name, value in os.environ.items() if name.lower() != "no_proxy"}
    found |= {spelled: nobody for name in PROXIES for spelled in (name, name.upper())}
    found["REMOTEGPU_CARRIER"] = "grpc" if request.param == "grpc" else "auto"
    options: tuple[str, ...] = ()
    ready: tuple[str, ...] = ()
    if request.param == "tls":
        certificate(folder, "here", x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        authority = str(folder / "here.pem")
        options, ready = ("--cert", authority, "--key", str(folder / "here.key")), ("--ca", authority)
        found[CA_ENV] = authority
    appliance = Appliance(*options)
    try:
        appliance.wait_until_ready(*ready)
        yield found | {APPLIANCE_ENV: appliance.endpoint}
    finally:
        appliance.stop()


@pytest.mark.parametrize(
    "command",
    [(REMOTEGPU, "ls"), (REMOTEGPU, "run", "--report", *SHARE), (REMOTEGPU_RUN, *SHARE)],
    ids=["ls", "run", "remotegpu-run"],
)
def test_an_appliance_is_reached_past_every_proxy(environment: dict[str, str], command: tuple[str, ...]) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
