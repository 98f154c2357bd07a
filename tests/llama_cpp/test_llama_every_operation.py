"""llama.cpp's full test of its operations, CUDA against the CPU, by all kernels: hours (`make test-serving-values`)."""

from __future__ import annotations

import re
import subprocess
import time
from collections import Counter
from typing import Final

import pytest
from llama_cpp.decoding import native_command, program

HOURS: Final = 12
pytestmark = [pytest.mark.serving_values, pytest.mark.timeout(HOURS * 3600 + 60)]
CASE: Final = re.compile(r"^\s*(\w+)\(.*\): .*?(OK|FAIL|not supported)", re.MULTILINE)
# Fewer would say that the pattern above no longer reads what is printed.
CASES: Final = 10_000


def test_every_operation_is_the_cpu_s() -> None:
    command = native_command(program("test-backend-ops"), "test", "-b", "CUDA0")
    begun = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=HOURS * 3600)
    # Colours are between the words.
    said = re.sub("\x1b\\[[0-9;]*m", "", done.stdout)
    seen = Counter(CASE.findall(said))
    print(f"{time.monotonic() - begun:.0f} s")
    for operation in sorted({each for each, _ in seen}):
        passed, failed, refused = (seen[operation, word] for word in ("OK", "FAIL", "not supported"))
        print(f"{operation}: {passed} passed, {failed} failed, {refused} not supported")
    failures = [line for line in said.splitlines() if "FAIL" in line]
    assert (done.returncode, failures) == (0, []), done.stderr[-4000:]
    assert sum(seen[each] for each in seen if each[1] == "OK") > CASES
