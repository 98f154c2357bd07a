"""Measures how soon a gateway that was killed is back, with 1,000 leases, 500 sessions and 4,000 moved leases.

PYTHONPATH=tests .venv/bin/python tools/bench_gateway.py [TIMES]
"""

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from support.crowded_gateway import LEASES, MOVED, SESSIONS, crowded_gateway


async def main(times: int) -> None:
    """Kills it so often. Prints milliseconds until it knows all, and until a new session has its connection."""
    told, opened = [], []
    with tempfile.TemporaryDirectory() as folder:
        async with crowded_gateway(Path(folder)) as crowded:
            for number in range(times):
                began = time.monotonic()
                await crowded.kill()
                await crowded.gateway.synced()
                told.append(time.monotonic() - began)
                crowded.admit(f"{9000 + number:032x}")
                await crowded.connect(f"{9000 + number:032x}")
                opened.append(time.monotonic() - began)
                # More deaths in a minute end an appliance.
                await asyncio.sleep(15)
    what = f"{LEASES} leases, {SESSIONS} sessions, {MOVED} moved"
    figures = (f"{1e3 * median(each):.0f} ms (at most {1e3 * max(each):.0f})" for each in (told, opened))
    print(f"load {os.getloadavg()[0]:.1f}; {what}: it knows all after {', a new session opens after '.join(figures)}")


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:] or ["5"])))
