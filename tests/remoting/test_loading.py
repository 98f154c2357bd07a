"""Device code: what is kept of it, and what loading it waits for."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from support.stand_in import StandIn
from support.system import PROGRAMS, REMOTEGPU, ROOT, appliance, free_port, until

from remotegpu.paths import find_dist
from remotegpu.rpc.client import Access

PROGRAM = str(ROOT / "tests" / "programs" / "load_under_kernel.py")


@pytest.mark.parametrize("bed", ["native", "remote"])
def test_loading_a_kernel_may_wait_for_a_running_one_and_holds_up_nobody_else(bed: str) -> None:
    """On the slow profile, loading waits for all that runs, as CUDA says that it may."""
    if bed == "native":
        command = [REMOTEGPU, "run", "--native", "--profile", "slow", "--", sys.executable, PROGRAM]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    else:
        with appliance(profile="slow") as slow:
            run = slow.run("load_under_kernel.py", timeout=60)
    assert (run.returncode, run.stdout) == (0, "waits\nok\n"), run.stderr


def test_images_share_a_budget_and_one_beyond_it_is_refused_with_a_reason() -> None:
    with appliance("--image-memory", "1MiB") as small:
        run = small.run("load_large.py", "700", "800", "2000", "900")
    assert (run.returncode, run.stdout) == (0, "0 0 2 0 0 0 2 0\n"), run.stderr
    (line,) = (line for line in run.stderr.splitlines() if "--image-memory" in line)
    assert "2 MiB" in line and "1 MiB" in line, "once: what was to be loaded, and the limit"


def counted(port: int, counter: str) -> int:
    """A counter of the appliance, summed over its labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        lines = page.read().decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if re.match(rf"{counter}_total[ {{]", line))


@pytest.mark.parametrize("kept", [True, False])
def test_the_processes_of_one_tenant_send_their_code_once(kept: bool, tmp_path: Path) -> None:
    """A large image; those of another tenant send it themselves, but not what the public one has sent."""
    port, tokens = free_port(), tmp_path / "tokens"
    tokens.write_text("[user]\nalice:one\nbob:two\ncommon:three\ndave:four\n")
    cache = ("--public-code", "common") if kept else ("--code-cache", "0")
    options = ("--tokens", str(tokens), "--metrics-port", str(port), *cache)
    with StandIn(find_dist().root, *options, access=Access("one")) as it:

        def is_sent(token: str) -> bool:
            before, ended = counted(port, "remotegpu_received_bytes"), counted(port, "remotegpu_worker_exits")
            command = ("run", "--token", token, "--", sys.executable, str(PROGRAMS / "load_large.py"), "900")
            run = it.cli(*command, timeout=60)
            assert (run.returncode, run.stdout) == (0, "0 0\n"), run.stderr
            # A lease is gone before its workers, which tell last what they received.
            until(lambda: counted(port, "remotegpu_worker_exits") > ended, 10, "its worker has ended")
            return counted(port, "remotegpu_received_bytes") - before > 900 << 10

        assert is_sent("one")
        if kept:
            # A worker may end while it hands the image over; then the next one does.
            until(lambda: not is_sent("one"), 20, "the tenant's next process does not send it")
            assert is_sent("two")
            until(lambda: not is_sent("three"), 20, "the public tenant's next process does not send it")
            assert not is_sent("four")
        else:
            assert is_sent("one")
            assert is_sent("two")
