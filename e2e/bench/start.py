"""Measures how much later a pod starts because it has a share, by phase.

Pairs of the same pod with 0.25 of a GPU and without, one after the other, on the cluster of `make cluster` with the
chart installed. Phases are seen through a watch and by the pod's own clock, which is this machine's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "e2e")]

from support.installation import Installation  # noqa: E402 (the path comes first)
from support.kubectl import Kubectl, Object  # noqa: E402
from support.manifests import pod, program  # noqa: E402
from support.namespace import Namespace, temporary  # noqa: E402

PAIRS: Final = 10
# Each is the time since the phase before it.
PHASES: Final = ("created", "gate lifted", "scheduled", "program began")
CUDA: Final = ("cuda.bindings imported", "first answer of the GPU")


class Watch:
    """Records when each pod was first seen in each state."""

    def __init__(self) -> None:
        self.seen: dict[str, dict[str, float]] = {}
        self._changed = threading.Condition()

    def note(self, pod: Object) -> None:
        now, states = time.time(), ["created"]
        if not pod["spec"].get("schedulingGates"):
            states.append("gate lifted")
        if pod["spec"].get("nodeName"):
            states.append("scheduled")
        if pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}:
            states.append("ended")
        with self._changed:
            times = self.seen.setdefault(pod["metadata"]["name"], {})
            for state in states:
                times.setdefault(state, now)
            self._changed.notify_all()

    def wait_until_ended(self, name: str, seconds: float = 60) -> dict[str, float]:
        with self._changed:
            if not self._changed.wait_for(lambda: "ended" in self.seen.get(name, {}), seconds):
                raise TimeoutError(f"pod {name} has not ended after {seconds:.0f} s: {self.seen.get(name)}")
            return self.seen[name]


@contextmanager
def watching(namespace: Namespace) -> Iterator[Watch]:
    watch = Watch()
    command = namespace.kubectl.command("get", "pods", "-n", namespace.name, "--watch", "-o", "json")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        threading.Thread(target=_read, args=(process.stdout.readline, watch.note), daemon=True).start()
        try:
            yield watch
        finally:
            process.terminate()


def _read(line: Callable[[], str], note: Callable[[Object], None]) -> None:
    """kubectl prints one object after the other, each over many lines."""
    text = ""
    while piece := line():
        text += piece
        if piece == "}\n":
            note(json.loads(text))
            text = ""


def phases(namespace: Namespace, watch: Watch, name: str, *, share: bool) -> dict[str, float]:
    """Seconds of each phase."""
    arguments = [] if share else ["--no-cuda"]
    asked = time.time()
    namespace.create(pod(name, program("stamps.py", *arguments), fraction="0.25" if share else None))
    seen = watch.wait_until_ended(name)
    told = dict(line.split() for line in namespace("logs", name).splitlines() if len(line.split()) == 2)
    moments = [seen["created"], seen["gate lifted"], seen["scheduled"], float(told["began"])]
    if share:
        moments += [float(told["imported"]), float(told["answered"])]
    names = (*PHASES, *CUDA)
    return {name: later - earlier for name, earlier, later in zip(names, [asked, *moments], moments, strict=False)}


def measure(kubectl: Kubectl) -> dict[str, dict[str, float]]:
    rows: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    with temporary(kubectl) as namespace, watching(namespace) as watch:
        for number in range(PAIRS + 1):
            for share in (False, True):
                name = f"{'share' if share else 'plain'}-{number}"
                result = phases(namespace, watch, name, share=share)
                if number:  # the first pair reads programs from the disk
                    rows[share].append(result)
    return {
        "without": {phase: statistics.median(row[phase] for row in rows[False]) for phase in PHASES},
        "with": {phase: statistics.median(row[phase] for row in rows[True]) for phase in (*PHASES, *CUDA)},
        "extra": {"until the program begins": _extra(rows)},
    }


def _extra(rows: dict[bool, list[dict[str, float]]]) -> float:
    totals = {share: statistics.median(sum(row[p] for p in PHASES) for row in rows[share]) for share in rows}
    return totals[True] - totals[False]


def table(result: dict[str, dict[str, float]]) -> str:
    lines = [
        f"A pod's start, medians of {PAIRS} pairs, seconds",
        "| phase | without a share | with 0.25 |",
        "|---|---|---|",
    ]
    for phase, seconds in result["with"].items():
        other = result["without"].get(phase)
        lines.append(f"| {phase} | {'-' if other is None else f'{other:.3f}'} | {seconds:.3f} |")
    lines.append(f"| later by, until the program begins | | {result['extra']['until the program begins']:.3f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="where to write the result")
    options = parser.parse_args()
    kubectl = Kubectl.of_environment()
    installation = Installation(kubectl)
    installation.upgrade()
    installation.wait_until_ready()
    result = measure(kubectl)
    print(table(result))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
