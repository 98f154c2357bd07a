"""llama-server with four slots on a share: four requests at once, killed, and started again at once."""

from __future__ import annotations

import json
import os
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
from llama_cpp.decoding import SECONDS, native_command, program
from llama_cpp.random_model import write
from support.system import Appliance, appliance, free_port, until

pytestmark = [pytest.mark.serving_values, pytest.mark.timeout(SECONDS + 60)]
PROMPTS = [[300 + 7 * at + many % 200 for at in range(16)] for many in range(4)]
TOKENS = 24


class Server:
    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.address = f"http://127.0.0.1:{port}"

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.address + path, data, {"Content-Type": "application/json"})
        with urlopen(request, timeout=300) as answer:
            return json.loads(answer.read())

    def complete(self, prompt: list[int]) -> list[int]:
        asked = {"prompt": prompt, "n_predict": TOKENS, "temperature": 0, "ignore_eos": True}
        found: list[int] = self.ask("/completion", asked | {"return_tokens": True, "cache_prompt": False})["tokens"]
        return found

    def healthy(self) -> bool:
        assert self.process.poll() is None
        try:
            return bool(self.ask("/health")["status"] == "ok")
        except URLError:
            return False

    def kill(self) -> None:
        """`run` and the server, which are a group; the appliance hears of it when the connection ends."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def server(model: Path, where: Appliance | None) -> Iterator[Server]:
    port = free_port()
    command = [program("llama-server"), "--model", str(model), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--parallel", "4", "--ctx-size", "1024", "--n-gpu-layers", "99", "--no-webui", "--threads", "2"]
    command += ["--flash-attn", "off"]
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


def one_after_the_other(it: Server) -> list[list[int]]:
    return [it.complete(prompt) for prompt in PROMPTS]


def test_four_at_once_are_right_also_after_a_kill(tmp_path: Path) -> None:
    model = write(tmp_path / "model.gguf")
    with server(model, None) as native:
        right = one_after_the_other(native)
    assert [len(tokens) for tokens in right] == [TOKENS] * 4
    assert len({tuple(tokens) for tokens in right}) == 4
    # A share of nine tenths: the second server starts only where the first one's is back.
    with appliance("--grace", "0s") as it:
        for _ in range(2):
            with server(model, it) as remote:
                assert remote.ask("/props")["total_slots"] == 4
                assert one_after_the_other(remote) == right
                with ThreadPoolExecutor(4) as threads:
                    at_once = list(threads.map(remote.complete, PROMPTS))
                assert [len(tokens) for tokens in at_once] == [TOKENS] * 4
                # Other kernels compute a batch of several, and add in another order: only the beginning is the same.
                assert [tokens[0] for tokens in at_once] == [tokens[0] for tokens in right]
                remote.kill()
        until(lambda: it.leased_bytes() == 0, 30, "the share is back")
