"""An appliance on IPv4, on IPv6 and on both; and addresses as people write them, which one function reads."""

from __future__ import annotations

import functools
import os
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


# The client's test reads it, too (`remoting/client/src/connect/address.rs`).
TABLE = Path(__file__).with_name("addresses.txt").read_text().splitlines()


@pytest.mark.parametrize("row", [row for row in TABLE if not row.startswith("#")])
def test_an_address_to_listen_on(row: str) -> None:
    text, default, expected = row.split("|")
    try:
        host, port = addresses.split(text, int(default) if default else None)
    except ValueError as error:
        assert (expected, "is not an address" in str(error)) == ("none", True)
    else:
        assert f"{host} {port}" == expected


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


# In a network of its own: an appliance, its port of metrics, and a program on it.
ALONE = """
set -e
{network}
"$1" appliance --listen '[::]:7070' --http '[::]:7072' --insecure --memory 64MiB --backend software >"$2" 2>&1 &
appliance=$!
trap 'kill $appliance; wait $appliance' EXIT
for _ in $(seq {seconds}); do
    if "$3" -c "import sys, urllib.request as u; sys.exit(u.urlopen(sys.argv[1]).status != 200)" \
        'http://{host}:7072/readyz' 2>/dev/null; then break; fi
    sleep 1
done
"$3" -c "import sys, urllib.request as u; assert b'remotegpu_' in u.urlopen(sys.argv[1]).read()" \
    'http://{host}:7072/metrics'
for carrier in auto direct grpc; do
    REMOTEGPU_CARRIER=$carrier "$1" run --appliance '{host}:7070' -p 0.5 -- "$3" -c "$4"
done
"$1" ls --appliance '{host}:7070' >/dev/null
"""
UP = "ip link set lo up"
NETWORKS = {
    "IPv4 alone": (f"{UP}; echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6", "127.0.0.1"),
    "IPv6 alone": (f"{UP}; ip address delete 127.0.0.1/8 dev lo", "[::1]"),
    "both, by IPv6": (UP, "[::1]"),
}


@pytest.mark.skipif(os.geteuid() != 0, reason="a network of its own needs root")
@pytest.mark.parametrize("network", NETWORKS)
def test_a_program_runs_in_a_network_of_one_family(network: str, tmp_path: Path) -> None:
    made, host = NETWORKS[network]
    script = ALONE.format(network=made, host=host, seconds=SECONDS)
    command = ["unshare", "--net", "sh", "-c", script, "sh", REMOTEGPU, str(tmp_path / "log"), sys.executable, PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * SECONDS, check=False)
    said = (tmp_path / "log").read_text()
    assert (done.returncode, done.stdout) == (0, 3 * "1\n"), done.stderr + said


# Its session's data go both ways.
PROGRAM = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
def ok(code):
    assert code == 0, code
count, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
ok(cuda.cuInit(0))
ok(cuda.cuDeviceGetCount(ctypes.byref(count)))
ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
ok(cuda.cuCtxSetCurrent(context))
there, back = ctypes.create_string_buffer(bytes(range(256)) * 4096), ctypes.create_string_buffer(1 << 20)
ok(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 20)))
ok(cuda.cuMemcpyHtoD_v2(address, there, ctypes.c_size_t(1 << 20)))
ok(cuda.cuMemcpyDtoH_v2(back, address, ctypes.c_size_t(1 << 20)))
assert back.raw == there.raw[: 1 << 20]
print(count.value)
"""


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
