"""Measures how busy this machine's CPUs are."""

import threading
import time
from pathlib import Path
from typing import Final

_STAT: Final = Path("/proc/stat")
# The kernel counts in hundredths of a second, so a shorter interval is too inexact.
_LEAST_SECONDS: Final = 0.2


def busy_and_all(stat: str) -> tuple[int, int]:
    """Parses /proc/stat: returns the busy ticks and all ticks of all CPUs together since the machine started."""
    user, nice, system, idle, iowait, irq, softirq, steal = map(int, stat.split(maxsplit=9)[1:9])
    work = user + nice + system + irq + softirq + steal
    return work, work + idle + iowait


class CpuUsage:
    """Measures the load of the CPUs between two calls of `percent`. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked = time.monotonic()
        self._ticks = busy_and_all(_STAT.read_text())
        self._percent = 0

    def percent(self) -> int:
        with self._lock:
            now = time.monotonic()
            if now - self._asked >= _LEAST_SECONDS:
                busy, every = busy_and_all(_STAT.read_text())
                busy_before, every_before = self._ticks
                self._asked, self._ticks = now, (busy, every)
                # The kernel's count of waiting time may decrease.
                self._percent = min(100, round(100 * (busy - busy_before) / max(every - every_before, 1)))
            return self._percent
