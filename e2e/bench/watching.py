"""Compares what an event of the API server costs two readers: the operator's own cache, and kopf's `on.event`.

Both fill the same store with the same 2,000 claims. Then each gets 4,000 changes twice: as they are made, and all at
once after a sleep. A reader is a process of its own; the rest of the machine is left to the API server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import IO, Any, Final, Literal

import kopf

from remotegpu.api.kubernetes import CLAIMS, GROUP, VERSION
from remotegpu_operator.claims.stores import GPUCLAIMS
from remotegpu_operator.cluster.cache import Cache
from remotegpu_operator.cluster.kube import Api, Object, configuration

ROOT: Final = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "e2e")]

from support.apiserver import ApiServer, api_server  # noqa: E402 (the path comes first)
from support.kubelab import CLAIMS as PATH  # noqa: E402
from support.kubelab import Kube, claim, serve_crds  # noqa: E402

OBJECTS: Final = 2000
CHANGES_OF_EACH: Final = 2
WRITERS: Final = 16
NAMESPACE: Final = "bench"
LABEL: Final = "remotegpu.io/bench"

Reader = Literal["cache", "kopf"]
READERS: Final[Sequence[Reader]] = ("cache", "kopf")


@dataclass(frozen=True)
class Phase:
    """The events that the reader received between two marks; `seconds` is wall time since the reader could begin."""

    events: int
    seconds: float
    cpu_seconds: float

    @property
    def cpu_us(self) -> float:
        return self.cpu_seconds / self.events * 1e6

    @property
    def per_second(self) -> float:
        return self.events / self.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--rounds", type=int, default=3, help="how often each reader runs; the medians are printed")
    parser.add_argument("--read", choices=READERS, help=argparse.SUPPRESS)
    parser.add_argument("--kubeconfig", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        asyncio.run(_read(options.read, options.kubeconfig))
        return
    with api_server() as server:
        result = measure(server, options.rounds)
    print(table(result))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        kept = {
            reader: [{name: asdict(phase) for name, phase in run.items()} for run in result[reader]]
            for reader in result
        }
        options.json.write_text(json.dumps(kept, indent=2) + "\n")


# The process that reads.


class Told:
    """Counts the store's changes, and reports when every object has reached the wanted state."""

    def __init__(self) -> None:
        self.events = 0
        self._at: dict[str, int] = {}
        self._round = 0

    def __call__(self, old: Object | None, new: Object | None) -> None:
        self.events += 1
        assert new is not None
        self._at[new["metadata"]["name"]] = state = int(new["metadata"]["labels"][LABEL])
        if state == self._round * CHANGES_OF_EACH and self._all_there():
            self._round += 1
            mark = {"events": self.events, "wall": time.monotonic(), "cpu": time.process_time()}
            print(json.dumps(mark), flush=True)

    def _all_there(self) -> bool:
        return len(self._at) == OBJECTS and all(at == self._round * CHANGES_OF_EACH for at in self._at.values())


async def _read(reader: Reader, kubeconfig: str) -> None:
    async with Api(await configuration(kubeconfig)) as api:
        cache = Cache(api, GPUCLAIMS, Told())
        print(json.dumps({"events": 0, "wall": time.monotonic(), "cpu": time.process_time()}), flush=True)
        await (cache.run() if reader == "cache" else _kopf(cache))


async def _kopf(cache: Cache) -> None:
    """Runs kopf in its leanest form: no annotations, no events of its own, no scan for other kinds, on this loop."""
    logging.getLogger("kopf").setLevel(logging.ERROR)
    registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.label_selectors[GROUP, VERSION, CLAIMS] = LABEL

    @kopf.on.login(registry=registry)
    def login(**arguments: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_kubeconfig(**arguments)

    @kopf.on.event(GROUP, VERSION, CLAIMS, registry=registry)
    async def changed(event: Any, **_: Any) -> None:
        cache.store(event["object"])

    await kopf.operator(registry=registry, settings=settings, standalone=True, clusterwide=True)


# The process that writes and compares.


def measure(server: ApiServer, rounds: int) -> dict[Reader, list[dict[str, Phase]]]:
    serve_crds(server)
    kube = Kube(server.kubeconfig)
    kube.namespace(NAMESPACE)
    found: dict[Reader, list[dict[str, Phase]]] = {reader: [] for reader in READERS}
    for _ in range(rounds):
        for reader in READERS:
            _write(kube, 0, create=not found["cache"] and reader == "cache")
            found[reader].append(_run(kube, reader))
    return found


def _run(kube: Kube, reader: Reader) -> dict[str, Phase]:
    command = [sys.executable, __file__, "--read", reader, "--kubeconfig", kube.kubeconfig]
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=os.environ | {"KUBECONFIG": kube.kubeconfig}
        ) as process,
    ):
        assert process.stdout
        try:
            marks = [_mark(process.stdout), _mark(process.stdout)]
            started = [marks[0]["wall"], time.monotonic()]
            for change in range(CHANGES_OF_EACH):
                _write(kube, change + 1)
            marks.append(_mark(process.stdout))
            process.send_signal(signal.SIGSTOP)
            for change in range(CHANGES_OF_EACH):
                _write(kube, CHANGES_OF_EACH + change + 1)
            started.append(time.monotonic())
            process.send_signal(signal.SIGCONT)
            marks.append(_mark(process.stdout))
        finally:
            process.kill()
    phases = {}
    for name, begun, before, after in zip(("list", "live", "backlog"), started, marks[:-1], marks[1:], strict=True):
        phases[name] = Phase(after["events"] - before["events"], after["wall"] - begun, after["cpu"] - before["cpu"])
    return phases


def _mark(output: IO[str]) -> Any:
    line = output.readline()
    assert line, "the reader ended"
    return json.loads(line)


def _write(kube: Kube, state: int, *, create: bool = False) -> None:
    path = PATH.format(NAMESPACE)

    def one(number: int) -> None:
        name, labels = f"claim-{number:04}", {LABEL: str(state)}
        if create:
            body = claim(name, "bench", fraction="0.25")
            kube("POST", path, body | {"metadata": {"name": name, "labels": labels}})
        else:
            kube.merge(f"{path}/{name}", {"metadata": {"labels": labels}})

    with ThreadPoolExecutor(WRITERS) as writers:
        list(writers.map(one, range(OBJECTS)))


def table(result: dict[Reader, list[dict[str, Phase]]]) -> str:
    lines = [
        f"{len(os.sched_getaffinity(0))} cores for everything; {OBJECTS} claims, {CHANGES_OF_EACH * OBJECTS} changes",
        "| | reader | events | events per second | CPU per event |",
        "|---|---|---|---|---|",
    ]
    for name in ("list", "live", "backlog"):
        for reader, runs in result.items():
            phases = [run[name] for run in runs]
            events, rate = (median(each) for each in ([p.events for p in phases], [p.per_second for p in phases]))
            cpu = median(phase.cpu_us for phase in phases)
            lines.append(f"| {name} | {reader} | {events:.0f} | {rate:.0f} | {cpu:.0f} us |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
