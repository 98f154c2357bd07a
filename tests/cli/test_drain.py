"""`remotegpu drain`, and names of leases for the shell that completes them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support.stand_in import StandIn
from support.system import REMOTEGPU, line

from remotegpu.api.failures import ApplianceError, Failure
from remotegpu.api.quantities import Ask


def test_it_waits_until_the_last_lease_is_gone(dist: Path) -> None:
    with StandIn(dist) as appliance:
        lease = appliance.lease(Ask(milli_per_gpu=250))
        command = [REMOTEGPU, "drain", "--deadline", "1h", "--appliance", appliance.endpoint]
        with subprocess.Popen(command, env=appliance.environment, stdout=subprocess.PIPE, text=True) as draining:
            try:
                assert line(draining) == f"{appliance.endpoint} drains: 1 lease left"
                with pytest.raises(ApplianceError) as refused:
                    appliance.lease(Ask(milli_per_gpu=250))
                assert refused.value.failure is Failure.BUSY
                lease.let_go()
                # It ends at once, and may have ended before the question.
                assert line(draining).removeprefix(appliance.endpoint) in (
                    " drains: no leases left",
                    " answers no more, as one that has ended",
                )
                assert draining.wait(20) == 0
            finally:
                draining.kill()
        assert appliance.process.wait(20) == 0


def test_at_the_deadline_the_appliance_ends_its_leases(dist: Path) -> None:
    with StandIn(dist, "--drain-seconds", "600") as appliance:
        session = appliance.lease(Ask(milli_per_gpu=250)).session()
        done = appliance.cli("drain", "--deadline", "1s")
        assert done.returncode == 0, done.stderr
        assert appliance.process.wait(20) == 0
        assert "the appliance shuts down" in session.rest()


def test_a_deadline_is_a_time(appliance: StandIn) -> None:
    done = appliance.cli("drain", "--deadline", "soon")
    assert (done.returncode, "--deadline" in done.stderr, done.stderr.count("\n")) == (2, True, 1)
    assert not appliance.client.inventory().draining


def completed(words: str, **environment: str) -> list[str]:
    """Returns the completions that a shell shows for the last of these words."""
    variables = os.environ | environment
    variables |= {"_REMOTEGPU_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run([REMOTEGPU], env=variables, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_leases_are_completed(appliance: StandIn) -> None:
    held = [appliance.lease(Ask(milli_per_gpu=250)) for _ in range(2)]
    names = sorted(lease.lease_id[:8] for lease in appliance.client.inventory().leases)
    assert sorted(completed("remotegpu suspend ", REMOTEGPU_APPLIANCE=appliance.endpoint)) == names
    first = completed(f"remotegpu migrate --appliance {appliance.endpoint} {names[0][:6]}")
    assert first == [name for name in names if name.startswith(names[0][:6])]
    assert completed("remotegpu suspend ") == []
    for lease in held:
        lease.close()
