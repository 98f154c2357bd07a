"""Two questions to a real driver, answered as JSON: `tools/gpu_test.sh measure`.

    pattern words left    of 16,777,216 words that a process or session left in device memory, how many the next one
                          reads in new memory: after they were freed, and after they were not
    addresses             of one module's global, in two fresh processes: equal ones mean that a saved address can be
                          used again

REMOTEGPU_TEST_BACKEND=software asks the software GPU, which tests this file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

from support.system import PROGRAMS, REMOTEGPU, appliance


def said(command: Sequence[str], program: str, *arguments: str) -> str:
    whole = [*command, sys.executable, str(PROGRAMS / program), *arguments]
    done = subprocess.run(whole, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise SystemExit(f"{program} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip()


def answers(command: Sequence[str]) -> dict[str, object]:
    left = {}
    for way in ("freed", "kept"):
        said(command, "residue.py", way)
        left[way] = int(said(command, "residue.py", way))
    addresses = [said(command, "global_address.py").split()[0] for _ in range(2)]
    return {"pattern words left": left, "addresses": addresses, "addresses are equal": addresses[0] == addresses[1]}


def main() -> None:
    software = os.environ.get("REMOTEGPU_TEST_BACKEND") == "software"
    native = [REMOTEGPU, "run", "--native", "--"] if software else []
    with appliance(backend="software" if software else "cuda") as it:
        share = [REMOTEGPU, "run", "--appliance", it.endpoint, "-p", "0.5", "--"]
        found = {"natively": answers(native), "on a share": answers(share)}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
