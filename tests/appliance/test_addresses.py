"""An appliance on IPv4, on IPv6 and on both; and addresses as people write them, which one function reads."""

from __future__ import annotations

import functools
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from support.system import REMOTEGPU, free_port, until

from remotegpu.api import addresses
from remotegpu.api.failures import ApplianceError
from remotegpu.rpc.client import parse_endpoint

SECONDS = 60


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("host:7070", ("host", 7070)),
        ("10.0.0.1:7070", ("10.0.0.1", 7070)),
        ("[::]:7070", ("::", 7070)),
        ("[fd00::5]:7070", ("fd00::5", 7070)),
        (":::7070", ("::", 7070)),
        ("::1:7070", ("::1", 7070)),
        ("host:0", ("host", 0)),
        *(
            (text, None)
            for text in ("", "host", ":7070", "[]:7070", "[::]", "host:", "host:x", "host:65536", "host:-1")
        ),
    ],
)
def test_an_address_to_listen_on(text: str, found: tuple[str, int] | None) -> None:
    if found is not None:
        assert addresses.split(text) == found
        return
    with pytest.raises(ValueError, match="is not an address"):
        addresses.split(text)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("host", "host", 7070), ("[::1]", "::1", 7070), ("[::1]:9", "::1", 9), (" 10.0.0.1:9 ", "10.0.0.1", 9)],
)
def test_an_address_of_an_appliance(text: str, host: str, port: int) -> None:
    found = parse_endpoint(text)
    assert (found.host, found.port) == (host, port)
    for wrong in ("", "host:0", "[]"):
        with pytest.raises(ApplianceError):
            parse_endpoint(wrong)


@pytest.mark.parametrize(
    ("listen", "reached"),
    [("[::]", ("127.0.0.1", "[::1]")), ("0.0.0.0", ("127.0.0.1",)), ("[::1]", ("[::1]",))],
    ids=["both", "IPv4", "IPv6"],
)
def test_an_appliance_is_reached_by_every_address(listen: str, reached: tuple[str, ...], tmp_path: Path) -> None:
    port, http = free_port(), free_port()
    command = [REMOTEGPU, "appliance", "--listen", f"{listen}:{port}", "--http", f"{listen}:{http}", "--insecure"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*command, "--memory", "64MiB", "--backend", "software"], stderr=log, stdout=log)
    try:
        for host in reached:
            until(functools.partial(_ready, f"http://{host}:{http}/readyz"), SECONDS, f"ready on {host}")
            program = [sys.executable, "-c", PROGRAM]
            run = [REMOTEGPU, "run", "--appliance", f"{host}:{port}", "-p", "0.5", "--", *program]
            done = subprocess.run(run, capture_output=True, text=True, timeout=SECONDS, check=False)
            assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    finally:
        process.terminate()
        process.wait(SECONDS)


PROGRAM = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count = ctypes.c_int()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
print(count.value)
"""


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
