"""Shifts the wall clock of processes, as if the machine's clock had been set, by preloading `shifted_clock.c`."""

from __future__ import annotations

import itertools
import mmap
import struct
import subprocess
import time
from pathlib import Path
from typing import Final

_SOURCE: Final = Path(__file__).with_suffix(".c")
# The shift in seconds that Jepsen uses.
JUMP: Final = 262


class ShiftedClock:
    """A clock for processes with `environment`. Their monotonic clock is not shifted."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        library, self._file = folder / "shifted_clock.so", folder / "shift"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, _SOURCE], check=True)
        self._file.write_bytes(bytes(8))
        with self._file.open("r+b") as file:
            self._shift = mmap.mmap(file.fileno(), 8)
        self.environment = {"LD_PRELOAD": str(library), "SHIFTED_CLOCK": str(self._file)}

    def jump(self, seconds: int) -> None:
        """Sets the shift of the clock from now on."""
        self._shift[:] = struct.pack("q", seconds)

    def strobe(self, seconds: float) -> None:
        """Sets the clock ahead, behind and right in turn, five times a second, for `seconds`, and at last right."""
        end = time.monotonic() + seconds
        for shift in itertools.cycle((JUMP, -JUMP, 0)):
            self.jump(shift)
            if time.monotonic() > end:
                break
            time.sleep(0.2)
        self.jump(0)
