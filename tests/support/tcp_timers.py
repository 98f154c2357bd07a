"""Reads the kernel's timers of TCP connections with silent peers from /proc/net/tcp."""

import os
from pathlib import Path

from support.system import until

ESTABLISHED = "01"
TICKS = os.sysconf("SC_CLK_TCK")


def timers(port: int) -> dict[str, float]:
    """Returns the seconds until the kernel's next probe of each peer of a local port."""
    left: dict[str, float] = {}
    for row in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, _, timer, *_ = row.split()
        if state == ESTABLISHED and int(local.split(":")[1], 16) == port:
            left[remote] = int(timer.split(":")[1], 16) / TICKS
    return left


def until_asked_for(port: int, seconds: float, patience: float) -> None:
    """Waits until the kernel has probed each peer of a port for `seconds`. Fails if it closed a connection.

    The kernel sends keepalive and window probes repeatedly. A timer that has increased was restarted, so all of its
    previous time has passed.
    """
    left = timers(port)
    assert left, f"no connection to port {port}"
    started, asked = dict(left), dict.fromkeys(left, 0.0)

    def asked_for_long() -> bool:
        now = timers(port)
        assert now.keys() >= left.keys(), f"the kernel gave up a connection after {min(asked.values()):.1f} s"
        for end in asked:
            if now[end] > left[end]:
                asked[end] += started[end]
                started[end] = now[end]
            left[end] = now[end]
        return min(asked.values()) > seconds

    until(asked_for_long, patience, f"the kernel asks for {seconds} s")
