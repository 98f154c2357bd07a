"""Programs that were built with gcc's -fsanitize=address: its runtime wants to be the first library that was loaded."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.system import DIST, REMOTEGPU, Appliance

SANITIZED = "-fsanitize=address"
NOT_FIRST = "does not come first"
POD = DIST / "pod" / "lib"


@pytest.fixture(scope="module")
def without_cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that every container may have; its options are its own."""
    folder = tmp_path_factory.mktemp("sanitized")
    source = folder / "plain.c"
    source.write_text('#include <stdio.h>\nint main(void) { return puts("ok") < 0; }\n')
    subprocess.run(["cc", SANITIZED, source, "-o", folder / "plain"], check=True)
    return folder / "plain"


def preloaded(program: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run as in a pod, where /etc/ld.so.preload has what LD_PRELOAD has here."""
    environment = os.environ | {"LD_PRELOAD": str(POD / "libremotegpu.so"), "LD_LIBRARY_PATH": str(POD)} | variables
    return subprocess.run([program], capture_output=True, text=True, timeout=60, env=environment, check=False)


@pytest.mark.parametrize("source", ["driver_copies.c", "at_the_end.cpp"])
def test_a_sanitized_program_computes_on_a_share(share: Appliance, compiled: Callable[..., Path], source: str) -> None:
    run = share.run(str(compiled(source, SANITIZED)), env={"ASAN_OPTIONS": "detect_leaks=0"})
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr


def test_a_sanitized_program_starts_beside_what_is_preloaded(share: Appliance, without_cuda: Path) -> None:
    for run in (share.run(str(without_cuda)), preloaded(without_cuda)):
        assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr


def test_natively_it_starts_too(without_cuda: Path) -> None:
    command = [REMOTEGPU, "run", "--native", "--", str(without_cuda)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr


def test_what_the_user_asks_of_the_sanitizer_goes_before(without_cuda: Path) -> None:
    """So that the tests above could fail: the runtime still looks if it is told to."""
    run = preloaded(without_cuda, ASAN_OPTIONS="verify_asan_link_order=1")
    assert run.returncode != 0
    assert NOT_FIRST in run.stderr
