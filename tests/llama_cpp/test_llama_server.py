"""llama-server with four slots on a share: four requests at once, killed, and started again at once; drained and ended;
and llama-cli.
"""

from __future__ import annotations

import re
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from llama_cpp.decoding import SECONDS, native_command, program
from llama_cpp.random_model import write
from llama_cpp.serving import PROMPTS, TOKENS, Server, server
from support.system import ROOT, Appliance, appliance, until

pytestmark = pytest.mark.timeout(SECONDS + 60)
ATTENTIONS = {
    "without": ("--flash-attn", "off"),
    "flash": ("--flash-attn", "on"),
    "flash-q8_0": ("--flash-attn", "on", "--cache-type-k", "q8_0", "--cache-type-v", "q8_0"),
}


def one_after_the_other(it: Server) -> list[list[int]]:
    return [it.complete(prompt) for prompt in PROMPTS]


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_four_at_once_are_right_also_after_a_kill(attention: str, tmp_path: Path) -> None:
    model, options = write(tmp_path / "model.gguf"), ATTENTIONS[attention]
    with server(model, None, *options) as native:
        right = one_after_the_other(native)
    assert [len(tokens) for tokens in right] == [TOKENS] * 4
    assert len({tuple(tokens) for tokens in right}) == 4
    # A share of nine tenths: the second server starts only where the first one's is back.
    with appliance("--grace", "0s") as it:
        for _ in range(2):
            with server(model, it, *options) as remote:
                assert remote.ask("/props")["total_slots"] == 4
                assert one_after_the_other(remote) == right
                with ThreadPoolExecutor(4) as threads:
                    at_once = list(threads.map(remote.complete, PROMPTS))
                assert [len(tokens) for tokens in at_once] == [TOKENS] * 4
                # Other kernels compute a batch of several, and add in another order: only the beginning is the same.
                assert [tokens[0] for tokens in at_once] == [tokens[0] for tokens in right]
                remote.kill()
        until(lambda: it.leased_bytes() == 0, 30, "the share is back")


def test_what_has_begun_is_answered_before_the_server_ends(tmp_path: Path) -> None:
    """Kubernetes runs the `preStop` of the example, and then sends SIGTERM, on which llama-server ends at once."""
    model, long = write(tmp_path / "model.gguf"), 200
    command = pre_stop()
    with appliance("--grace", "0s") as it, server(model, it) as remote, ThreadPoolExecutor(1) as threads:
        answer = threads.submit(remote.complete, PROMPTS[0], long)
        until(remote.is_processing, 60, "the request has begun")
        assert "8080" in command[-1]
        command[-1] = command[-1].replace("8080", str(remote.port))
        subprocess.run(command, check=True, timeout=SECONDS)
        assert len(answer.result(5)) == long
        assert not remote.is_processing()
        end(remote, it)


def pre_stop() -> list[str]:
    deployment = next(yaml.safe_load_all((ROOT / "examples/16-language-models/llama-server.yaml").read_text()))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    command: list[str] = container["lifecycle"]["preStop"]["exec"]["command"]
    return command


def end(remote: Server, it: Appliance) -> None:
    """By SIGTERM to `run`, which hands it on."""
    remote.process.send_signal(signal.SIGTERM)
    assert remote.process.wait(60) == 0
    until(lambda: it.leased_bytes() == 0, 30, "the share is back")


def test_llama_cli_says_the_same_as_natively(tmp_path: Path) -> None:
    model = write(tmp_path / "model.gguf")
    command = [program("llama-cli"), "--model", str(model), "--prompt", "a b c", "--predict", "12", "--temp", "0"]
    command += ["--single-turn", "--simple-io", "--flash-attn", "on", "--n-gpu-layers", "99", "--threads", "2"]
    with appliance("--grace", "0s") as it:
        said = [
            subprocess.run(whole, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS)
            for whole in (native_command(*command), it.command(*command))
        ]
    assert [each.returncode for each in said] == [0, 0], said
    # What stands between the prompt and the line with the times.
    native, remote = (re.search(rb"> a b c\n(.+?)\n\[ Prompt:", each.stdout, re.DOTALL) for each in said)
    assert native and remote, said
    assert native[1] == remote[1]
    assert len(native[1].split()) > 4
