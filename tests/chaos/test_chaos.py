"""Eight sessions while parts of the system die and stop at random: nothing is lost, doubled or leaked.

`make chaos` lasts 15 minutes and chooses a seed; a run of the shard two. The seed decides which faults come, not
when: a fault is over before the next one begins.
"""

from __future__ import annotations

import contextlib
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509
from support.certificates import certificate
from support.faultproxy import FaultProxy, Way
from support.system import PROGRAMS, REMOTEGPU, Appliance, until

SECONDS = float(os.environ.get("REMOTEGPU_CHAOS_SECONDS", "120"))
SEED = int(os.environ.get("REMOTEGPU_CHAOS_SEED", "1"))
SESSIONS = 8
NAME = "appliance"
# Within this time an error has to be reported, and the next program has to compute.
TOLD, AGAIN = 20, 60
LOST = 911  # CUDA_ERROR_EXTERNAL_DEVICE

#: How often each comes. The first kind ends a session, the second only delays it. A vanished peer is not here:
#: `test_a_peer_that_vanishes_is_lost_within_10_seconds` tests it, as behind a proxy its kernel would still answer.
FATAL = {"kill worker": 4, "kill client": 4}
HARMLESS = {"stop worker": 4, "stop client": 4, "delay": 4, "cut": 4, "flip a bit": 4, "kill gateway": 1}
# Longer than it takes to come back, and shorter than a killed client's worker may take to end.
GRACE = "15s"


class Tenant:
    """A program on a share, behind a network of its own; after it, the next one."""

    def __init__(self, appliance: Appliance, number: int, ca: Path) -> None:
        self.appliance, self.number, self.ca = appliance, number, ca
        self.started = 0
        self.rounds = 0
        self.last = ""
        self._lines: queue.Queue[str] = queue.Queue()
        self._network = contextlib.ExitStack()
        self.start()

    def connect(self) -> list[FaultProxy]:
        """New proxies before both ports."""
        self._network.close()
        host, _, port = self.appliance.endpoint.rpartition(":")
        address = f"127.0.0.{10 + self.number}"
        return [
            self._network.enter_context(FaultProxy(host, each, listen_host=address, listen_port=each))
            for each in (int(port), int(port) + 1)
        ]

    def start(self) -> None:
        self.proxies = self.connect()
        before = set(self.appliance.workers())
        self.started += 1
        endpoint = f"127.0.0.{10 + self.number}:{self.appliance.endpoint.rpartition(':')[2]}"
        access = ["--ca", str(self.ca), "--server-name", NAME, "-p", "0.1"]
        program = [sys.executable, str(PROGRAMS / "count_rounds.py"), str(SEED + 1000 * self.number + self.started)]
        self.process = subprocess.Popen(
            [REMOTEGPU, "run", "--appliance", endpoint, *access, "--", *program],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.rounds, self._lines = 0, queue.Queue()
        threading.Thread(target=_read, args=(self.process, self._lines), daemon=True).start()
        until(self.computes_more_than(0), AGAIN, f"program {self.started} of tenant {self.number} computes")
        (self.worker,) = set(self.appliance.workers()) - before

    def look(self) -> str:
        """Reads the program's output. Returns its last line that is not a round; fails at one with "wrong"."""
        with contextlib.suppress(queue.Empty):
            while True:
                line = self._lines.get_nowait()
                assert not line.startswith("wrong"), f"tenant {self.number}: {line}"
                if line.startswith("round"):
                    self.rounds = int(line.split()[1])
                else:
                    self.last = line
        return self.last

    def computes_more_than(self, rounds: int) -> Callable[[], bool]:
        def more() -> bool:
            ended = self.process.poll()
            assert not self.look(), f"tenant {self.number} ended with {self.last}"
            assert ended is None, f"tenant {self.number} ended with code {ended}: {self.said()}"
            return self.rounds > rounds

        return more

    def said(self) -> str:
        """The program's error output, for failure messages; call it after the program has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def signal(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def has_ended(self) -> bool:
        self.look()
        return self.process.poll() is not None

    def clear(self) -> str:
        """Waits for the end. Returns the program's last line."""
        self.process.communicate()
        said, self.last = self.look(), ""
        return said

    def ends_well(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        until(lambda: self.look() and self.process.poll() is not None, AGAIN, f"tenant {self.number} ends")
        word, rounds, counted = self.last.split()
        assert (word, int(counted)) == ("ok", 20 * int(rounds)), "no launch is lost or doubled"
        assert self.process.returncode == 0
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGKILL)
        self.process.wait()
        self._network.close()


def _read(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    assert process.stdout is not None
    with contextlib.suppress(ValueError):
        for line in process.stdout:
            lines.put(line.strip())


class Chaos:
    def __init__(self, appliance: Appliance, tenants: list[Tenant], seed: int) -> None:
        self.appliance, self.tenants = appliance, tenants
        self.chance = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.longest = 0.0

    def fault(self) -> None:
        kinds = {**FATAL, **HARMLESS}
        (kind,) = self.chance.choices(list(kinds), list(kinds.values()))
        tenant = self.chance.choice(self.tenants)
        others = [each for each in self.tenants if each is not tenant]
        print(f"{kind}: tenant {tenant.number}, program {tenant.started}", flush=True)
        rounds = {each.number: each.rounds for each in others}
        began = time.monotonic()
        if kind in HARMLESS:
            self.delay(kind, tenant)
            until(tenant.computes_more_than(tenant.rounds), AGAIN, f"tenant {tenant.number} after: {kind}")
        else:
            self.hit(kind, tenant)
            self.replaced(kind, tenant)
        self.longest = max(self.longest, time.monotonic() - began)
        for each in others:
            until(each.computes_more_than(rounds[each.number]), AGAIN, f"tenant {each.number} beside: {kind}")
        self.done[kind] += 1

    def delay(self, kind: str, tenant: Tenant) -> None:
        """A fault that nothing notices except by the time that it takes."""
        pause = self.chance.uniform(0.5, 3)
        match kind:
            case "delay":
                for proxy in tenant.proxies:
                    proxy.delay(self.chance.choice([1, 10, 50]))
            case "stop worker":
                os.kill(tenant.worker, signal.SIGSTOP)
                time.sleep(pause)
                os.kill(tenant.worker, signal.SIGCONT)
            case "stop client":
                tenant.signal(signal.SIGSTOP)
                time.sleep(pause)
                tenant.signal(signal.SIGCONT)

            case "cut":
                for proxy in tenant.proxies:
                    proxy.cut()
            case "flip a bit":
                _, data = tenant.proxies
                data.damage(self.chance.choice(list(Way)), self.chance.randrange(1 << 14))
            case "kill gateway":
                # Under TLS it carries every connection.
                os.kill(self._gateway(), signal.SIGKILL)

    def hit(self, kind: str, tenant: Tenant) -> None:
        match kind:
            case "kill worker":
                os.kill(tenant.worker, signal.SIGKILL)
            case "kill client":
                tenant.signal(signal.SIGKILL)

    def replaced(self, kind: str, tenant: Tenant) -> None:
        """Its program ends with the error that it should have, its worker is gone, and another one computes."""
        until(tenant.has_ended, TOLD, f"tenant {tenant.number} is told: {kind}")
        said = tenant.clear()
        assert said == ("" if kind == "kill client" else f"error {LOST}"), f"{kind}: {said}"
        until(lambda: tenant.worker not in self.appliance.workers(), TOLD, f"its worker is gone: {kind}")
        tenant.start()

    def _gateway(self) -> int:
        found = subprocess.run(
            ["pgrep", "-P", str(self.appliance.process.pid), "-f", "remotegpu-gateway"], capture_output=True, text=True
        )
        (pid,) = map(int, found.stdout.split())
        return pid


def descriptors(appliance: Appliance) -> int:
    return len(list(Path(f"/proc/{appliance.process.pid}/fd").iterdir()))


@pytest.fixture
def appliance(tmp_path: Path) -> Iterator[Appliance]:
    certificate(tmp_path, "here", x509.DNSName(NAME))
    it = Appliance("--grace", GRACE, "--cert", str(tmp_path / "here.pem"), "--key", str(tmp_path / "here.key"))
    try:
        it.wait_until_ready("--ca", str(tmp_path / "here.pem"), "--server-name", NAME)
        yield it
    finally:
        it.stop()


@pytest.mark.timeout(SECONDS + 300)
def test_random_faults_lose_double_and_leak_nothing(appliance: Appliance, tmp_path: Path) -> None:
    print(f"\nREMOTEGPU_CHAOS_SEED={SEED}")
    tenants: list[Tenant] = []
    try:
        tenants += [Tenant(appliance, 0, tmp_path / "here.pem")]
        tenants[0].ends_well()
        until(lambda: not appliance.workers(), TOLD, "the first session is gone")
        before = descriptors(appliance)
        tenants[0].last = ""
        tenants[0].start()
        tenants += [Tenant(appliance, number, tmp_path / "here.pem") for number in range(1, SESSIONS)]
        chaos = Chaos(appliance, tenants, SEED)
        watch = time.monotonic()
        while time.monotonic() - watch < SECONDS:
            chaos.fault()
        print(f"{dict(chaos.done)}; longest {chaos.longest:.1f} s; {sum(each.started for each in tenants)} programs")
        for each in tenants:
            each.ends_well()
        until(lambda: not appliance.workers(), TOLD, "no worker is left")
        until(lambda: descriptors(appliance) <= before, TOLD, f"no more than the {before} descriptors of the beginning")
        assert not [line for line in appliance.log.lines if "Traceback" in line]
        assert sum(chaos.done.values()) > 0
    finally:
        for each in tenants:
            each.close()
