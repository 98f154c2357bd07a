"""Processes whose wall clock a test moves, as if the machine's had been set: `shifted_clock.c`, preloaded."""

from __future__ import annotations

import itertools
import mmap
import struct
import subprocess
import time
from pathlib import Path
from typing import Final

_SOURCE: Final = Path(__file__).with_suffix(".c")
# As Jepsen moves it.
JUMP: Final = 262


class ShiftedClock:
    """One clock; `environment` is that of the processes that have it. Their monotonic clock is everybody's."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        library, self._file = folder / "shifted_clock.so", folder / "shift"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, _SOURCE], check=True)
        self._file.write_bytes(bytes(8))
        with self._file.open("r+b") as file:
            self._shift = mmap.mmap(file.fileno(), 8)
        self.environment = {"LD_PRELOAD": str(library), "SHIFTED_CLOCK": str(self._file)}

    def jump(self, seconds: int) -> None:
        """From now on it is off by that much."""
        self._shift[:] = struct.pack("q", seconds)

    def strobe(self, seconds: float) -> None:
        """Ahead, behind and right, five times a second, for so long; then right."""
        end = time.monotonic() + seconds
        for shift in itertools.cycle((JUMP, -JUMP, 0)):
            self.jump(shift)
            if time.monotonic() > end:
                break
            time.sleep(0.2)
        self.jump(0)
