"""The output of `ls`, `smi`, `doctor` and `version`, for people and as JSON."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from pathlib import Path

import pytest
from support.stand_in import StandIn
from support.system import REMOTEGPU, free_port, until
from support.watching import watching

from remotegpu.api.quantities import Ask
from remotegpu.cli.doctor import here
from remotegpu.cli.output import age
from remotegpu.rpc import WIRE_VERSION
from remotegpu.rpc.client import Access

MIB = 1 << 20


def test_ls(appliance: StandIn) -> None:
    lease = appliance.lease(Ask(milli_per_gpu=250))
    listed = json.loads(appliance.cli("ls", "--json").stdout)
    (found,) = listed["appliances"]
    assert (found["endpoint"], found["backend"], found["draining"]) == (appliance.endpoint, "software", False)
    first, other = found["gpus"]
    assert first == {
        "index": 0,
        "uuid": appliance.gpus[0].uuid,
        "name": "Stand-in GPU",
        "total_bytes": 1024 * MIB,
        "shareable_bytes": 1024 * MIB,
        "leased_bytes": 256 * MIB,
        "used_bytes": 0,
        "healthy": True,
        "health_message": "",
        "guaranteed_milli": 0,
    }
    assert other["leased_bytes"] == 0
    assert [one["gpus"] for one in found["leases"]] == [[0]]
    lines = appliance.cli("ls").stdout.splitlines()
    assert lines[0].split() == ["APPLIANCE", "GPU", "NAME", "MEMORY", "FREE", "FREE", "PART", "LEASES", "STATE"]
    assert lines[1].split() == [
        appliance.endpoint, "0", "Stand-in", "GPU", "1.0", "GiB", "768.0", "MiB", "0.75", "1", "ready",
    ]  # fmt: skip
    lease.close()


def test_ls_watch_shows_a_change(appliance: StandIn) -> None:
    """Free memory of the first GPU, line by line: before a lease, with it, and after it."""
    with watching(REMOTEGPU, "ls", "--watch", "-a", appliance.endpoint, env=appliance.environment) as shown:

        def parts() -> list[str]:
            return [line.split()[8] for line in list(shown) if line.startswith(f"{appliance.endpoint}  0")]

        until(lambda: parts() == ["1.00"], 20, "the first table")
        lease = appliance.lease(Ask(milli_per_gpu=250))
        until(lambda: parts() == ["1.00", "0.75"], 20, "the lease")
        lease.close()
        until(lambda: parts() == ["1.00", "0.75", "1.00"], 20, "its end")


def test_smi_shows_who_holds_what(appliance: StandIn) -> None:
    lease = appliance.lease(Ask(milli_per_gpu=250))
    session = lease.session()
    session.grant(10 * MIB)
    shown = appliance.cli("smi").stdout
    assert appliance.gpus[0].uuid in shown
    assert f"{lease.granted.lease_id[:8]}  0     256.0 MiB  10.0 MiB  1" in shown
    listed = json.loads(appliance.cli("smi", "--json").stdout)
    assert listed["appliances"][0]["leases"][0]["used_bytes"] == 10 * MIB
    lease.close()
    assert "no leases" in appliance.cli("smi").stdout


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0s"), (59.9, "59s"), (61, "1m01s"), (3661, "1h01m"), (172_799, "47h59m"), (180_000, "2d02h")],
)
def test_an_age_has_its_two_largest_parts(seconds: float, said: str) -> None:
    assert age(seconds) == said


def test_a_client_name_is_text_not_markup(appliance: StandIn) -> None:
    with appliance.client.open_lease(Ask(milli_per_gpu=100), "[red]mallory[/red]\x1b[2J", wait=False) as events:
        granted = next(events).granted
    shown = appliance.cli("smi").stdout
    assert "[red]mallory[/red]" in shown
    assert "\x1b" not in shown
    appliance.client.close_lease(granted.lease_id, granted.lease_secret)


def test_doctor(appliance: StandIn) -> None:
    done = appliance.cli("doctor")
    assert done.returncode == 0
    lines = [line for line in done.stdout.splitlines() if not line.strip().startswith("fix:")]
    assert [int(line.split()[0]) for line in lines] == list(range(1, len(lines) + 1))
    assert {line.split()[1] for line in lines} == {"OK"}
    listed = json.loads(appliance.cli("doctor", "--json").stdout)
    assert listed["healthy"] is True
    assert "worker isolation" in {check["name"] for check in listed["checks"]}


def test_doctor_of_nothing(appliance: StandIn) -> None:
    done = appliance.cli("doctor", "-a", f"127.0.0.1:{free_port()}")
    assert done.returncode == 69
    assert "FAIL" in done.stdout
    assert done.stderr == ""


def test_doctor_waits_five_seconds_for_all_that_do_not_answer(appliance: StandIn) -> None:
    """They accept connections and send nothing; there is one thread for each."""
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        silent = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
        since = time.monotonic()
        done = appliance.cli("doctor", "-a", ",".join([*silent, appliance.endpoint]), "--json")
        took = time.monotonic() - since
    checks = json.loads(done.stdout)["checks"]
    assert done.returncode != 0
    assert sum(check["status"] == "fail" for check in checks) == 3, checks
    assert "control port" in [check["name"] for check in checks if check["where"] == appliance.endpoint]
    # Includes the start of Python.
    assert took < 8, took


def test_doctor_gives_up_on_an_appliance_whose_name_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lookup of its name never ends, as with a resolver that gets no answer."""
    over = threading.Event()
    monkeypatch.setattr(here, "appliance_checks", lambda *_: over.wait(60) and ())
    monkeypatch.setattr(here, "_MOST_SECONDS", 0.2)
    ((where, check),) = here.checks_of_all(["gpu:7070"], Access())
    over.set()
    assert (where, check.status) == ("gpu:7070", "fail")
    assert "no answer within 0.2 s" in check.message


def test_doctor_without_an_appliance_checks_this_installation(appliance: StandIn, tmp_path: Path) -> None:
    assert appliance.cli("doctor", "-a", "").returncode == 0
    appliance.environment["REMOTEGPU_DIST"], kept = str(tmp_path), appliance.environment["REMOTEGPU_DIST"]
    try:
        done = appliance.cli("doctor", "-a", "")
        assert done.returncode == 69
        assert "fix: build it with `make build`" in done.stdout
    finally:
        appliance.environment["REMOTEGPU_DIST"] = kept


def test_an_installation_without_the_software_gpu_is_well(appliance: StandIn, tmp_path: Path) -> None:
    """An installation for a machine with NVIDIA GPUs may leave it out; `run --native` says what is missing."""
    kept = Path(appliance.environment["REMOTEGPU_DIST"])
    (tmp_path / "client").symlink_to(kept / "client")
    appliance.environment["REMOTEGPU_DIST"] = str(tmp_path)
    try:
        done = appliance.cli("doctor", "-a", "", "--json")
        checks = {check["name"]: check["status"] for check in json.loads(done.stdout)["checks"]}
        assert (done.returncode, checks["client library"], checks["software GPU"]) == (0, "ok", "warn")
    finally:
        appliance.environment["REMOTEGPU_DIST"] = str(kept)


def test_version(appliance: StandIn) -> None:
    assert json.loads(appliance.cli("version", "--json").stdout)["wire"] == WIRE_VERSION
    assert appliance.cli("version").stdout.startswith(f"remotegpu 0.1.0 (wire {WIRE_VERSION})")
