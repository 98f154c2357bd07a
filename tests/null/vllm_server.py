"""vLLM's server on a share: what starts it, and what is asked of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from null.serving import PYTHON, SECONDS, settings
from support.system import until

# A process writes its statistics every 0.1 s, and they are read every 0.05 s.
READINGS = 10
PROMPT = " ".join(f"w{at}" for at in range(64))


class Server:
    """The API server and its engine, on a share."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self.address = f"http://127.0.0.1:{port}"
        self.log = log

    def request(self, path: str, body: dict[str, Any] | None = None) -> Request:
        data = None if body is None else json.dumps(body).encode()
        return Request(self.address + path, data, {"Content-Type": "application/json"})

    def ask(self, path: str, body: dict[str, Any] | None = None) -> str:
        with urlopen(self.request(path, body), timeout=300) as answer:
            text: str = answer.read().decode()
        return text

    def completion(self, words: int, **more: object) -> Request:
        asked = {"model": "model", "prompt": PROMPT, "max_tokens": words, "temperature": 0, "ignore_eos": True}
        return self.request("/v1/completions", asked | more)

    def tokens(self, words: int) -> int:
        with urlopen(self.completion(words), timeout=300) as answer:
            counted: int = json.loads(answer.read())["usage"]["completion_tokens"]
        return counted

    def streamed(self, words: int) -> Iterator[int]:
        """How many tokens of an answer have come, each time that some come."""
        had = 0
        with urlopen(self.completion(words, stream=True, return_token_ids=True), timeout=300) as answer:
            for line in answer:
                text = line.decode().strip().removeprefix("data: ")
                if text == "[DONE]":
                    return
                if text:
                    had += len(json.loads(text)["choices"][0]["token_ids"])
                    yield had
        raise AssertionError("the stream ended without its last line")

    def metric(self, name: str) -> float:
        return sum(float(value) for value in re.findall(rf"^{name}{{.*}} (.+)$", self.ask("/metrics"), re.MULTILINE))

    def cached_tokens(self) -> int:
        """How many its KV cache has room for."""
        (told,) = re.findall(r"GPU KV cache size: ([\d,]+) tokens", self.log.read_text())
        return int(told.replace(",", ""))

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
        (pid,) = found("pgrep", "-g", str(self.process.pid), "-f", "VLLM::EngineCore")
        return pid

    def kill_what_answers(self) -> int:
        """The API server alone; the process that has the GPU, which lives on, is the value."""
        engine = self.engine()
        (pid,) = found("ps", "-o", "ppid=", "-p", str(engine))
        os.kill(pid, signal.SIGKILL)
        return engine


def found(*command: str) -> list[int]:
    return [int(pid) for pid in subprocess.run(command, capture_output=True).stdout.split()]


def serve(folder: Path, port: int, *options: str) -> list[str]:
    command = [str(PYTHON.parent / "vllm"), "serve", str(folder), "--served-model-name=model", "--load-format=dummy"]
    command += [f"--port={port}", "--host=127.0.0.1", "--max-model-len=1024", "--gpu-memory-utilization=0.9"]
    return [*command, *options]


@contextmanager
def started(command: list[str], log: Path, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """A group of processes, which ends with the block."""
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, start_new_session=True, env=os.environ | settings() | more
        )
    try:
        yield process
    except BaseException:
        print(log.read_text()[-20_000:])
        raise
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def round_trips(statistics: Path) -> int:
    """The round trips of all processes, once their statistics stop changing."""
    counted: list[int] = [*range(READINGS)]

    def settled() -> bool:
        # A file may be read while it is written.
        with suppress(json.JSONDecodeError):
            counted.append(sum(json.loads(file.read_text())["round_trips"] for file in statistics.glob("*.json")))
        return len(set(counted[-READINGS:])) == 1

    until(settled, 30, "the statistics rest")
    return counted[-1]
