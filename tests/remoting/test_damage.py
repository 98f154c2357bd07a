"""One byte of a session's data connection is damaged under TLS: the program gets an error, and never a wrong number."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography import x509
from support.certificates import certificate
from support.faultproxy import FaultProxy, Way
from support.system import PROGRAMS, REMOTEGPU, Appliance, until

NAME = "appliance"
SEED = 20261126
LANES = 4
# A program that takes longer hangs.
SECONDS = 20
BUSY = "error 46"
# A handshake and a few of a program's rounds send this much in each direction.
BYTES = 1 << 17


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damage")
    certificate(folder, "here", x509.DNSName(NAME))
    source = PROGRAMS / "echo_often.c"
    subprocess.run(["cc", "-O1", "-o", folder / "echo_often", source, "-ldl"], check=True)
    return folder


@pytest.fixture(scope="module")
def secured(folder: Path) -> Iterator[Appliance]:
    with appliance_with_tls(folder, "0s") as it:
        yield it


@contextlib.contextmanager
def appliance_with_tls(folder: Path, grace: str) -> Iterator[Appliance]:
    certificate = ("--cert", str(folder / "here.pem"), "--key", str(folder / "here.key"))
    it = Appliance("--grace", grace, *certificate, "--quiet")
    try:
        it.wait_until_ready("--ca", str(folder / "here.pem"), "--server-name", NAME)
        yield it
    finally:
        it.stop()


def all_damaged(secured: Appliance, folder: Path, times: int) -> Counter[str]:
    """Half of them use each carrier. Both directions are damaged, often early: handshake, first answers, copies."""
    print(f"\nseed {SEED}")
    with ThreadPoolExecutor(LANES) as pool:
        lanes = [
            pool.submit(damaged, secured, folder, lane, times // LANES, ("direct", "grpc")[lane % 2])
            for lane in range(LANES)
        ]
        said = sum((lane.result() for lane in lanes), Counter[str]())
    print(dict(said))
    return said


def damaged(secured: Appliance, folder: Path, lane: int, times: int, carrier: str) -> Counter[str]:
    """Runs this many programs in turn, each with a connection that is damaged once. Returns their results, counted."""
    chance = random.Random(SEED + lane)
    host, _, port = secured.endpoint.rpartition(":")
    address = f"127.0.0.{40 + lane}"
    said: Counter[str] = Counter()
    control = FaultProxy(host, int(port), listen_host=address, listen_port=int(port))
    data = FaultProxy(host, int(port) + 1, listen_host=address, listen_port=int(port) + 1)
    access = ["--ca", str(folder / "here.pem"), "--server-name", NAME, "-p", "0.2"]
    # Its shell starts a program for each line.
    shell = f"while read seed; do timeout -s KILL {SECONDS} {folder}/echo_often $seed || echo hangs; done"
    command = [REMOTEGPU, "run", "--appliance", f"{address}:{port}", *access, "--", "sh", "-c", f"echo ready; {shell}"]
    with (
        control,
        data,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, "REMOTEGPU_CARRIER": carrier},
        ) as running,
    ):  # fmt: skip
        assert running.stdin is not None
        assert running.stdout is not None
        orders, answers = running.stdin, running.stdout
        assert answers.readline() == "ready\n"

        def run() -> str:
            """Returns a program's result; "" if it got no session: unclaimed ones live until their tickets expire."""
            made = data.made
            orders.write(f"{chance.randrange(1 << 30)}\n")
            orders.flush()
            answer = answers.readline().strip()
            return "" if answer == BUSY and data.made == made else answer

        for _ in range(times):
            way, after = chance.choice(list(Way)), int(BYTES ** chance.random())
            data.damage_next(way, after, tls=True)
            answer = until(run, 30, "there is a place")
            said[answer] += 1
            if not answer.startswith("error"):
                print(f"lane {lane}: {answer} after {after} bytes {way.value}, {carrier}")
        orders.close()
    return said


@pytest.mark.parametrize("times", [8, pytest.param(1000, marks=[pytest.mark.thorough, pytest.mark.timeout(1800)])])
def test_each_damaged_byte_is_an_error_and_no_wrong_number(secured: Appliance, folder: Path, times: int) -> None:
    said = all_damaged(secured, folder, times)
    assert sum(count for answer, count in said.items() if answer.startswith("error ")) == times


@pytest.mark.parametrize("times", [20, pytest.param(1000, marks=[pytest.mark.thorough, pytest.mark.timeout(3600)])])
def test_with_a_grace_the_session_goes_on(folder: Path, times: int) -> None:
    """Except if its very first connection is damaged before there is a session."""
    with appliance_with_tls(folder, "60s") as patient:
        said = all_damaged(patient, folder, times)
    assert said["right"] >= times / 4
    assert sum(count for answer, count in said.items() if answer == "right" or answer.startswith("error ")) == times
