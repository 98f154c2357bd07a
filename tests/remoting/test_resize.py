"""Another size of a lease's share, while its programs run."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from support.leases import lease, tell
from support.system import MIB, Appliance, appliance, line

BUSY, USAGE = 75, 2


@pytest.fixture(scope="module")
def remote() -> Iterator[Appliance]:
    with appliance(memory_mib=1024) as it:
        yield it


def resize(remote: Appliance, *size: str) -> subprocess.CompletedProcess[str]:
    return remote.cli("resize", lease(remote), *size)


def seen(program: subprocess.Popen[str]) -> list[int]:
    """Returns the program's report in MiB: its own memory, free, total, and total by NVML and by a new process."""
    tell(program, "say\n")
    return [int(number) for number in line(program).split()]


def allocate(program: subprocess.Popen[str], mib: int) -> str:
    tell(program, f"{mib}\n")
    return line(program)


def test_a_program_gets_more_and_gives_back(remote: Appliance) -> None:
    with remote.start("memory_on_order.py", share="0.25", stdin=subprocess.PIPE) as program:
        assert seen(program) == [0, 256, 256, 256, 256]
        assert allocate(program, 200) == "ok"
        assert allocate(program, 100) == "error 2"
        assert resize(remote, "-p", "0.5").returncode == 0
        assert seen(program) == [200, 312, 512, 512, 512]
        assert allocate(program, 200) == "ok"
        refused = resize(remote, "-m", "300MiB")
        assert refused.returncode == BUSY
        assert "InUse: its programs have 40" in refused.stderr
        assert seen(program)[2] == 512
        assert allocate(program, -200) == "ok"
        smaller = resize(remote, "-m", "300MiB")
        assert smaller.returncode == 0, smaller.stderr
        assert "300.0 MiB" in smaller.stdout
        assert seen(program) == [200, 100, 300, 300, 300]
        assert remote.leased_bytes() == 300 * MIB
        assert allocate(program, 150) == "error 2"
        program.communicate(timeout=30)


def test_what_is_not_free_is_refused(remote: Appliance) -> None:
    with remote.start("memory_on_order.py", share="0.25", stdin=subprocess.PIPE) as program:
        assert seen(program)[2] == 256
        name = lease(remote)
        with remote.start("memory_on_order.py", share="0.5", stdin=subprocess.PIPE) as other:
            assert seen(other)[2] == 512
            for size in (("-p", "0.75"), ("-m", "2GiB")):
                refused = remote.cli("resize", name, *size)
                assert refused.returncode == BUSY
                assert "NoRoom" in refused.stderr
            assert remote.cli("resize", name, "-p", "0.5").returncode == 0
            assert seen(program)[2] == 512
            other.communicate(timeout=30)
        assert remote.cli("resize", name).returncode == USAGE
        assert remote.cli("resize", name, "-p", "2").returncode == USAGE
        assert remote.cli("suspend", name).returncode == 0
        assert "Suspended" in remote.cli("resize", name, "-p", "0.1").stderr
        assert remote.cli("resume", name).returncode == 0
        assert seen(program)[2] == 512
        program.communicate(timeout=30)
