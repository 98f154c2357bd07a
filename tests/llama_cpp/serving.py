"""llama-server as a process, and what is asked of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.request import Request, urlopen

from llama_cpp.decoding import SECONDS, native_command, program
from support.system import Appliance, free_port, until

PROMPTS: Final = [[300 + 7 * at + many % 200 for at in range(16)] for many in range(4)]
TOKENS: Final = 24


def asking(prompt: list[int], tokens: int = TOKENS) -> dict[str, Any]:
    """A request whose answer is always the same."""
    asked = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "ignore_eos": True}
    return asked | {"return_tokens": True, "cache_prompt": False}


class Server:
    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.port = port
        self.address = f"http://127.0.0.1:{port}"

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.address + path, data, {"Content-Type": "application/json"})
        with urlopen(request, timeout=300) as answer:
            return json.loads(answer.read())

    def complete(self, prompt: list[int], tokens: int = TOKENS) -> list[int]:
        found: list[int] = self.ask("/completion", asking(prompt, tokens))["tokens"]
        return found

    def is_processing(self) -> bool:
        return any(slot["is_processing"] for slot in self.ask("/slots"))

    def healthy(self) -> bool:
        assert self.process.poll() is None
        try:
            return bool(self.ask("/health")["status"] == "ok")
        except URLError:
            return False

    def kill(self) -> None:
        """Kills `run` and the server, which are a group; the appliance is notified when the connection ends."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def server(model: Path, where: Appliance | None, *options: str) -> Iterator[Server]:
    port = free_port()
    command = [program("llama-server"), "--model", str(model), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--parallel", "4", "--ctx-size", "1024", "--n-gpu-layers", "99", "--no-webui", "--threads", "2"]
    command += options
    with (model.parent / "log").open("a") as log:
        process = subprocess.Popen(
            where.command(*command, share="0.9") if where else native_command(*command),
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    made = Server(process, port)
    try:
        until(made.healthy, SECONDS, "the server is healthy")
        yield made
    except BaseException:
        print((model.parent / "log").read_text()[-20_000:])
        raise
    finally:
        made.kill()
