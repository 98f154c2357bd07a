"""SGLang's server from its wheel, unedited, on a share of a null H100: it answers, and a token makes few round trips.

No kernel runs, so the answers' words mean nothing: each is what lay in memory. SGLang ends an answer whose next word is
not in its vocabulary, so some have fewer words than were asked for.
"""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from null.serving import SECONDS, model
from null.vllm_server import Server, round_trips, started
from support.system import ROOT, appliance, free_port, until

FOLDER = ROOT / "target" / "null-sglang"
SGLANG = FOLDER / "bin" / "sglang"
TOKENS, MOST_ROUND_TRIPS = 100, 10
pytestmark = [pytest.mark.null_sglang, pytest.mark.timeout(SECONDS + 300)]


@pytest.mark.parametrize("carrier", ["auto", "direct", "grpc"])
def test_it_answers_in_few_round_trips_and_gives_its_share_back(tmp_path: Path, carrier: str) -> None:
    """Uses CUDA graphs, which is the default, and kernels of its own wheels and of Triton."""
    assert SGLANG.exists(), "run `make test-null-sglang`, which installs the wheels"
    port, statistics = free_port(), tmp_path / "statistics"
    statistics.mkdir()
    command = [str(SGLANG), "serve", "--model-path", str(model(tmp_path)), "--load-format=dummy"]
    command += [f"--port={port}", "--host=127.0.0.1", "--served-model-name=model", "--context-length=1024"]
    # Other choices compile more kernels when the server starts.
    command += ["--attention-backend=triton", "--sampling-backend=pytorch", "--mem-fraction-static=0.7"]
    environment = {
        "REMOTEGPU_CARRIER": carrier,
        "REMOTEGPU_STATS": str(statistics),
        "SGLANG_ENABLE_JIT_DEEPGEMM": "0",
        # It compiles kernels by nvcc and Triton.
        "CUDA_HOME": str(FOLDER / "cuda"),
        "SGLANG_JIT_CACHE_DIR": str(FOLDER / "cache" / "jit"),
        "TRITON_CACHE_DIR": str(FOLDER / "cache" / "triton"),
    }
    with appliance(profile="null-h100", memory_mib=80 << 10) as it:
        with started(it.command(*command, share="0.45"), tmp_path / "log", **environment) as process:
            server = Server(process, port, tmp_path / "log")
            server.wait_until_healthy()
            with ThreadPoolExecutor(6) as threads:
                asked = range(10, 70, 10)
                had = list(threads.map(server.tokens, asked))
            assert all(1 <= few <= many for few, many in zip(had, asked, strict=True))
            before, tokens = round_trips(statistics), 0
            while tokens < TOKENS:
                tokens += server.tokens(TOKENS)
            trips = (round_trips(statistics) - before) / tokens
            print(f"{carrier}: {had} of {[*asked]}; {trips} round trips for each of {tokens}, {before} before")
            assert 0 < trips <= MOST_ROUND_TRIPS
            process.send_signal(signal.SIGTERM)
            process.wait(120)
        until(lambda: it.leased_bytes() == 0, 30, "the share is back")
