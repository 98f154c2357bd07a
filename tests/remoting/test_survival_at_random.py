"""Programs whose leases are suspended, resumed, moved and cut off at random lose, double and change nothing."""

from __future__ import annotations

import contextlib
import os
import random
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.faultproxy import FaultProxy
from support.system import Appliance, appliance, until

from remotegpu.api.failures import ApplianceError, Failure
from remotegpu.rpc import pb
from remotegpu.rpc.client import Access, ApplianceClient, parse_endpoint

PROGRAMS, APPLIANCES = 8, 3
# The proxies' address: the ports are the appliances' own.
BEHIND_PROXIES = "127.0.0.2"


class Place:
    """An appliance as its programs reach it: through a proxy before each port."""

    def __init__(self, remote: Appliance, stack: contextlib.ExitStack) -> None:
        host, _, port = remote.endpoint.rpartition(":")
        self.remote = remote
        self.endpoint = f"{BEHIND_PROXIES}:{port}"
        self.proxies = [
            stack.enter_context(FaultProxy(host, number, listen_host=BEHIND_PROXIES, listen_port=number))
            for number in (int(port), int(port) + 1)
        ]

        self.client = ApplianceClient(parse_endpoint(remote.endpoint), Access(), 30)
        stack.callback(self.client.close)

    def leases(self) -> list[pb.Lease]:
        return list(self.client.inventory().leases)

    def change(self, what: str, lease: str, there: Place) -> bool:
        """Whether it was done, else it was refused. Nothing else may come of it."""
        try:
            match what:
                case "suspend":
                    progress = self.client.suspend_lease(lease)
                case "resume":
                    progress = self.client.resume_lease(lease)
                case _:
                    via = ApplianceClient(parse_endpoint(there.endpoint), Access())
                    progress = self.client.move_lease(lease, via, there.client.invite_lease())
                    via.close()
            with progress as events:
                return [event.HasField("done") for event in events][-1]
        except ApplianceError as error:
            assert error.failure is Failure.BUSY, error
            return False


@contextlib.contextmanager
def counting(place: Place, seed: int, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A program that counts rounds and checks them, until its input ends."""
    elsewhere = Appliance.__new__(Appliance)
    elsewhere.endpoint = place.endpoint
    with (folder / f"{seed}.out").open("w") as out, (folder / f"{seed}.err").open("w") as errors:
        command = elsewhere.command("count_rounds.py", str(seed), share="0.1")
        program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=errors, text=True, env=os.environ)
        try:
            yield program
        finally:
            program.kill()
            program.communicate()


def rounds(folder: Path, seed: int) -> int:
    return len(re.findall("^round", (folder / f"{seed}.out").read_text(), re.MULTILINE))


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(60, id="a minute"),
        pytest.param(600, id="ten minutes", marks=[pytest.mark.thorough, pytest.mark.timeout(900)]),
    ],
)
def test_nothing_is_lost_doubled_or_changed(seconds: float, tmp_path: Path) -> None:
    chance, done = random.Random(17), {"suspend": 0, "resume": 0, "migrate": 0, "cut": 0}
    with contextlib.ExitStack() as stack:
        remotes = [stack.enter_context(appliance(memory_mib=1024)) for _ in range(APPLIANCES)]
        places = [Place(remote, stack) for remote in remotes]
        programs = [
            stack.enter_context(counting(places[seed % APPLIANCES], seed, tmp_path)) for seed in range(PROGRAMS)
        ]
        until(lambda: all(rounds(tmp_path, seed) for seed in range(PROGRAMS)), 60, "all programs count")
        over = time.monotonic() + seconds
        while time.monotonic() < over:
            here = chance.choice(places)
            what = chance.choice(list(done))
            if what == "cut":
                chance.choice(here.proxies).cut()
                done["cut"] += 1
            elif chosen := [
                each for each in here.leases() if what == "migrate" or bool(each.suspended) == (what == "resume")
            ]:
                there = chance.choice([place for place in places if place is not here])
                done[what] += here.change(what, chance.choice(chosen).lease_id, there)
        for place in places:
            for each in place.leases():
                if each.suspended:
                    assert place.change("resume", each.lease_id, place)
        before = [rounds(tmp_path, seed) for seed in range(PROGRAMS)]
        until(lambda: all(rounds(tmp_path, seed) > before[seed] for seed in range(PROGRAMS)), 60, "all go on")
        for seed, program in enumerate(programs):
            program.communicate(timeout=60)
            last = (tmp_path / f"{seed}.out").read_text().splitlines()[-1].split()
            assert last[0] == "ok", (last, (tmp_path / f"{seed}.err").read_text())
            assert int(last[2]) == 20 * int(last[1])
            assert program.returncode == 0
        until(lambda: all(not place.remote.workers() for place in places), 30, "nothing is left")
    # On a machine that does nothing else there are several a second.
    assert min(done.values()) >= 10, done
