"""A share is a smaller GPU: every query says so, and nothing gets past it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from support.system import MIB, Appliance, appliance, line, until

from remotegpu.api.quantities import Ask
from remotegpu.cli.run.holding import Wish, held
from remotegpu.paths import find_dist
from remotegpu.rpc.client import Access, ApplianceClient, parse_endpoint


@pytest.fixture(scope="module", params=["normal", "hostile"])
def impatient(request: pytest.FixtureRequest) -> Iterator[Appliance]:
    """An appliance without grace: a killed program's memory is free at once, as it need not come back."""
    with appliance("--grace", "0s", profile=request.param) as it:
        yield it


def test_every_view_shows_the_share(remote: Appliance) -> None:
    run = remote.run("memory_seen.py")
    assert run.returncode == 0, run.stderr
    seen = json.loads(run.stdout)
    shareable = remote.inventory()["appliances"][0]["gpus"][0]["shareable_bytes"]
    share = seen["total"]
    assert shareable * 0.25 - 2 * MIB <= share <= shareable * 0.25
    assert seen["device_total"] == seen["nvml_total"] == share
    assert seen["free"] <= share
    assert seen["code"] == 2
    assert share - 4 * MIB < seen["allocated"] <= share
    assert seen["free_at_end"] < 4 * MIB
    assert seen["nvml_uuid"].removeprefix("GPU-").replace("-", "") == seen["uuid"]


def test_nvidia_smi_shows_the_share(remote: Appliance) -> None:
    run = remote.run("nvidia-smi")
    assert run.returncode == 0, run.stderr
    total = json.loads(remote.run("memory_seen.py").stdout)["total"] // MIB
    assert re.search(rf"/\s*{total}MiB", run.stdout), run.stdout


def test_four_processes_share_one_lease(remote: Appliance) -> None:
    share = json.loads(remote.run("memory_seen.py").stdout)["total"]
    run = remote.run("allocate_together.py")
    assert run.returncode == 0, run.stderr
    sizes = [int(word) for word in run.stdout.split()]
    assert len(sizes) == 4 and all(sizes)
    assert share - 8 * MIB < sum(sizes) <= share


def test_leases_never_exceed_the_gpu_under_50_simultaneous_opens(remote: Appliance) -> None:
    """Each of 50 asks for 0.3 and holds it for a moment: three fit at a time, all get their turn."""
    shareable = remote.inventory()["appliances"][0]["gpus"][0]["shareable_bytes"]
    together = Barrier(50)
    seen: list[int] = []

    def hold() -> None:
        client = ApplianceClient(parse_endpoint(remote.endpoint), Access())
        together.wait()
        with held(Wish(Ask(1, 300), [remote.endpoint]), os.environ, find_dist()):
            seen.append(sum(gpu.leased_bytes for gpu in client.inventory().gpus))
        client.close()

    with ThreadPoolExecutor(50) as pool:
        for opened in [pool.submit(hold) for _ in range(50)]:
            opened.result()
    assert len(seen) == 50
    assert 0 < max(seen) <= shareable
    until(lambda: remote.leased_bytes() == 0, 5, "all shares are back")


def test_memory_of_a_killed_tenant_is_zeroed(impatient: Appliance) -> None:
    with impatient.start("leave_pattern.py", share="0.5") as tenant:
        filled = int(line(tenant))
        assert filled > 100 * MIB
        os.killpg(tenant.pid, signal.SIGKILL)
        tenant.wait()
    until(lambda: impatient.leased_bytes() == 0, 5, "the killed tenant's share is back")
    run = impatient.run("find_pattern.py", share="1")
    assert run.returncode == 0, run.stderr
    total, dirty = map(int, run.stdout.split())
    assert total > filled and dirty == 0


def test_two_shares_of_one_gpu_have_their_own_uuid(remote: Appliance) -> None:
    uuids = {json.loads(remote.run("visible_devices.py").stdout)["uuids"][0] for _ in range(2)}
    with remote.start("endless_calls.py") as other:
        assert line(other) == "ready"
        uuids.add(json.loads(remote.run("visible_devices.py").stdout)["uuids"][0])
    assert len(uuids) >= 2


@pytest.mark.parametrize(("value", "code", "count"), [("0", 0, 1), ("", 100, 0), ("7", 100, 0), ("nonsense", 100, 0)])
def test_cuda_visible_devices(remote: Appliance, value: str, code: int, count: int) -> None:
    seen = json.loads(remote.run("visible_devices.py", env={"CUDA_VISIBLE_DEVICES": value}).stdout)
    assert (seen["code"], seen["count"]) == (code, count)


def test_cuda_visible_devices_by_uuid(remote: Appliance) -> None:
    script = (
        'u=$(nvidia-smi --query-gpu=uuid --format=csv,noheader | head -1); '
        'CUDA_VISIBLE_DEVICES=$u exec "$0" "$1"'
    )  # fmt: skip
    import sys

    from support.system import PROGRAMS

    run = remote.run("sh", "-c", script, sys.executable, str(PROGRAMS / "visible_devices.py"))
    assert json.loads(run.stdout)["count"] == 1, run.stderr


def test_exit_codes_and_signals_pass_through(remote: Appliance) -> None:
    assert remote.run("sh", "-c", "exit 7").returncode == 7
    killed = remote.run("sh", "-c", "kill -TERM $$").returncode
    assert killed in (-signal.SIGTERM, 128 + signal.SIGTERM)


def test_waiting_says_why(impatient: Appliance) -> None:
    with impatient.start("endless_calls.py", share="0.8") as holder:
        assert line(holder) == "ready"
        refused = impatient.run("true", share="0.5", options=("--no-wait",))
        assert refused.returncode != 0
        assert "0.5" in refused.stderr and refused.stderr.count("\n") == 1
        waiting = subprocess.Popen(impatient.command("true", share="0.5"), stderr=subprocess.PIPE, text=True)
        assert waiting.stderr is not None
        assert "wait" in waiting.stderr.readline().lower()
        os.killpg(holder.pid, signal.SIGKILL)
        assert waiting.wait(30) == 0
        waiting.stderr.close()
