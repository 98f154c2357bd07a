"""Measures the latencies of vLLM's server for its clients with `vllm bench serve`: natively, and on shares of a null
H100.

PYTHONPATH=tests .venv/bin/python tools/bench_serving.py [--json FILE] [--only NAME...]

Takes minutes, and prints the table of docs/benchmarks.md. Needs the packages that `make test-null-serving` installs.
The null GPU computes nothing, so a step takes only the time of processors and network, all on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from null.serving import PYTHON, RULES, model, settings
from null.vllm_server import Server, serve, started
from support import proxied
from support.system import REMOTEGPU, Appliance, appliance, free_port, until

SHARE: Final = "0.45"
CLIENTS: Final = (1, 8, 32)
# Requests per client, and tokens per request.
REQUESTS, PROMPT, ANSWER = 6, 64, 128
# The number of the second tenant's clients, and of their requests: enough for the whole measurement.
TENANT: Final = 8
ENOUGH: Final = 4000
GENERATED: Final = "vllm:generation_tokens_total"
# Time to the first token, time between two pieces of an answer, and time per token of an answer.
FIGURES: Final = ("p50_ttft_ms", "p99_ttft_ms", "p50_itl_ms", "p99_itl_ms", "p50_tpot_ms", "p99_tpot_ms")


@dataclass(frozen=True)
class Setting:
    title: str
    share: bool = True
    delay_ms: float = 0.0
    # Options of the appliance.
    options: tuple[str, ...] = ()
    tenant: bool = False


SETTINGS: Final = {
    "native": Setting("natively", share=False),
    "share": Setting("share"),
    "near": Setting("share, 0.2 ms each way", delay_ms=0.2),
    "far": Setting("share, 1 ms each way", delay_ms=1),
    "tenant": Setting("share, beside a second tenant", tenant=True),
    "turns": Setting("the same with `--compute-mode turns`", options=("--compute-mode", "turns"), tenant=True),
}


@contextmanager
def serving(setting: Setting, where: Appliance | None, folder: Path, name: str) -> Iterator[Server]:
    port = free_port()
    graphs = json.dumps({"cudagraph_capture_sizes": list(CLIENTS)})
    words = serve(folder, port, "--compilation-config", graphs)
    if where is None:
        command = [REMOTEGPU, "run", "--native", "--profile", "null-h100", "--", *words]
    elif setting.delay_ms:
        command = proxied.command(where, *words, share=SHARE)
    else:
        command = where.command(*words, share=SHARE)
    log = folder.parent / f"{name}.log"
    # All settings except `native` use the same carrier.
    with started(command, log, REMOTEGPU_CARRIER="direct") as process:
        it = Server(process, port, log)
        it.wait_until_healthy()
        yield it


def bench(it: Server, folder: Path, clients: int, requests: int, result: Path) -> list[str]:
    command = [str(PYTHON.parent / "vllm"), "bench", "serve", "--model", "model", "--tokenizer", str(folder)]
    command += ["--base-url", it.address, "--dataset-name", "random", "--random-input-len", str(PROMPT)]
    command += ["--random-output-len", str(ANSWER), "--ignore-eos", "--num-prompts", str(requests)]
    command += [
        "--max-concurrency",
        str(clients),
        "--percentile-metrics",
        "ttft,itl,tpot",
        "--metric-percentiles",
        "50,99",
    ]
    return [*command, "--save-result", "--result-dir", str(result.parent), "--result-filename", result.name]


def measured(it: Server, folder: Path, clients: int) -> dict[str, float]:
    result = folder.parent / "result.json"
    result.unlink(missing_ok=True)
    requests = max(REQUESTS * clients, 20)
    command = bench(it, folder, clients, requests, result)
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | settings(), check=False, cwd=folder.parent
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    found: dict[str, Any] = json.loads(result.read_text())
    assert found["completed"] == requests
    return {name: float(found[name]) for name in FIGURES} | {"load": os.getloadavg()[0]}


def measure(setting: Setting, folder: Path) -> dict[int, dict[str, float]]:
    with ExitStack() as stack:
        where = None
        if setting.share:
            where = stack.enter_context(appliance(*setting.options, profile="null-h100", memory_mib=80 << 10))
            if setting.delay_ms:
                stack.enter_context(proxied.delayed(where, setting.delay_ms))
        it = stack.enter_context(serving(setting, where, folder, "server"))
        if setting.tenant:
            other = stack.enter_context(serving(setting, where, folder, "tenant"))
            command = bench(other, folder, TENANT, ENOUGH, folder.parent / "tenant.json")
            busy = stack.enter_context(started(command, folder.parent / "tenant-bench.log"))
            until(lambda: other.metric(GENERATED) > 0, 300, "the second tenant's clients have answers")
        found = {}
        for clients in CLIENTS:
            before, begun = other.metric(GENERATED) if setting.tenant else 0, time.monotonic()
            found[clients] = measured(it, folder, clients)
            if setting.tenant:
                assert busy.poll() is None, "the second tenant's clients ended"
                rate = (other.metric(GENERATED) - before) / (time.monotonic() - begun)
                found[clients]["tenant_tokens_per_second"] = rate
                print(f"second tenant: {rate:.0f} tokens/s", file=sys.stderr)
        return found


def rows(title: str, found: dict[int, dict[str, float]]) -> Iterator[str]:
    for clients, figures in found.items():
        cells = [f"{figures[f'p50_{it}_ms']:.1f} / {figures[f'p99_{it}_ms']:.1f}" for it in ("ttft", "itl", "tpot")]
        yield f"| {title} | {clients} | {' | '.join(cells)} | {figures['load']:.0f} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where to write all that was measured")
    parser.add_argument("--only", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    asked = parser.parse_args()
    os.environ["REMOTEGPU_NULL_RULES"] = str(RULES)
    print("| p50 / p99, ms | clients | TTFT | ITL | TPOT | load |\n|---|---|---|---|---|---|", flush=True)
    everything = {}
    for name in asked.only:
        with tempfile.TemporaryDirectory() as folder:
            found = measure(SETTINGS[name], model(Path(folder)))
        print("\n".join(rows(SETTINGS[name].title, found)), flush=True)
        everything[name] = found
    if asked.json:
        asked.json.write_text(json.dumps(everything, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
