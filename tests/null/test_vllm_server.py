"""`vllm serve` on a share of a null H100: an engine that is killed, requests at once, a stream, sleep, and an end.

No kernel runs, so the answers' words mean nothing; their number is what was asked for.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
from null.serving import PYTHON, SECONDS, model, settings
from support.system import Appliance, free_port, until

pytestmark = [pytest.mark.null_serving, pytest.mark.timeout(2 * SECONDS)]
SHARE = "0.9"
GIB = 1 << 30
PROMPT = " ".join(f"w{at}" for at in range(64))


class Server:
    """The API server and its engine, on a share."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.address = f"http://127.0.0.1:{port}"

    def ask(self, path: str, body: dict[str, Any] | None = None) -> str:
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.address + path, data, {"Content-Type": "application/json"})
        with urlopen(request, timeout=300) as answer:
            text: str = answer.read().decode()
        return text

    def complete(self, words: int, **more: object) -> str:
        asked = {"model": "model", "prompt": PROMPT, "max_tokens": words, "temperature": 0, "ignore_eos": True}
        return self.ask("/v1/completions", asked | more)

    def tokens(self, words: int) -> int:
        counted: int = json.loads(self.complete(words))["usage"]["completion_tokens"]
        return counted

    def metric(self, name: str) -> float:
        return sum(float(value) for value in re.findall(rf"^{name}{{.*}} (.+)$", self.ask("/metrics"), re.MULTILINE))

    def wait_until_healthy(self) -> None:
        def healthy() -> bool:
            assert self.process.poll() is None
            try:
                self.ask("/health")
            except URLError:
                return False
            return True

        until(healthy, SECONDS, "the server is healthy")

    def engine(self) -> int:
        """The process that has the GPU."""
        found = subprocess.run(["pgrep", "-g", str(self.process.pid), "-f", "VLLM::EngineCore"], capture_output=True)
        (pid,) = found.stdout.split()
        return int(pid)


@contextmanager
def server(appliance: Appliance, folder: Path) -> Iterator[Server]:
    port = free_port()
    command = [str(PYTHON.parent / "vllm"), "serve", str(folder), "--served-model-name=model", "--load-format=dummy"]
    command += [f"--port={port}", "--host=127.0.0.1", "--max-model-len=1024", "--gpu-memory-utilization=0.9"]
    command += ["--enforce-eager", "--enable-sleep-mode"]
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(
            appliance.command(*command, share=SHARE), stdout=log, stderr=log, start_new_session=True,
            env=os.environ | settings() | {"VLLM_SERVER_DEV_MODE": "1"},
        )  # fmt: skip
    try:
        made = Server(process, port)
        made.wait_until_healthy()
        yield made
    except BaseException:
        print((folder / "log").read_text()[-20_000:])
        raise
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_server_answers_sleeps_and_ends_after_one_whose_engine_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMOTEGPU_NULL_RULES", settings()["REMOTEGPU_NULL_RULES"])
    folder = model(tmp_path)
    appliance = Appliance(profile="null-h100", memory_mib=80 << 10)
    try:
        appliance.wait_until_ready()
        with server(appliance, folder) as killed:
            assert killed.tokens(8) == 8
            os.kill(killed.engine(), signal.SIGKILL)
            # vLLM's server ends when its engine does, with 0.
            killed.process.wait(60)
        # At once, and with as much memory: the killed one's is free.
        with server(appliance, folder) as it:
            answers(it)
            sleeps(it, appliance)
            it.process.send_signal(signal.SIGTERM)
            assert it.process.wait(120) == 0
        until(lambda: appliance.leased_bytes() == 0, 30, "the share is back")
    finally:
        appliance.stop()
    assert appliance.process.returncode == 0


def answers(it: Server) -> None:
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(it.tokens, range(10, 70, 10))) == [10, 20, 30, 40, 50, 60]
    lines = [line for line in it.complete(24, stream=True).splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    assert sum(bool(json.loads(line.removeprefix("data: "))["choices"][0]["text"]) for line in lines[:-1]) == 24
    # All prompts were the same, and of four blocks.
    assert it.metric("vllm:prefix_cache_hits_total") > 0


def sleeps(it: Server, appliance: Appliance) -> None:
    awake = appliance.used_bytes()
    assert awake > 50 * GIB
    it.ask("/sleep?level=1", {})
    assert appliance.used_bytes() < 2 * GIB
    it.ask("/wake_up", {})
    assert appliance.used_bytes() == pytest.approx(awake, rel=0.01)
    assert it.tokens(8) == 8
