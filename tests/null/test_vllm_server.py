"""`vllm serve` on shares of a null H100: two at once, a cut connection, kills, sleep, and an end. The first server has
its share by TCP, the next two by what the machine offers, and the last by gRPC.

No kernel runs, so the answers' words mean nothing; their number is as requested. A start takes half a minute, so that
one test has four of them.
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from null.serving import SECONDS, model, null_h100
from null.vllm_server import Server, round_trips, serve, started
from support import proxied
from support.faultproxy import FaultProxy
from support.system import Appliance, free_port, until

pytestmark = [pytest.mark.null_serving, pytest.mark.timeout(2 * SECONDS)]
GIB = 1 << 30
# A stream has TOKENS tokens; the connection is cut after each CUT_EVERY of them, and has a delay meanwhile.
TOKENS, CUT_EVERY, DELAY_MS = 120, 30, 5
MOST_ROUND_TRIPS = 10
HALF, WHOLE = "0.45", "0.9"
EAGER = "--enforce-eager"


def test_servers_survive_cuts_and_give_back_what_killed_ones_had(tmp_path: Path) -> None:
    folder, statistics = model(tmp_path), tmp_path / "statistics"
    statistics.mkdir()
    with null_h100() as it, proxied.before_data(it) as proxy:
        ports = [free_port() for _ in range(4)]
        far = proxied.command(it, *serve(folder, ports[0], EAGER), share=HALF)
        # In one share, one after the other.
        both = [
            serve(folder, ports[1], EAGER, "--kv-cache-dtype=fp8"),
            serve(folder, ports[2], EAGER, "--cpu-offload-gb=1"),
        ]
        # The second one would look for memory before this test has ended the first one's engine.
        go = tmp_path / "go"
        between = f"until [ -e {shlex.quote(str(go))} ]; do sleep 0.1; done"
        near = it.command("sh", "-c", f"{shlex.join(both[0])}; {between}; exec {shlex.join(both[1])}", share=HALF)
        old = {"REMOTEGPU_CARRIER": "direct", "REMOTEGPU_STATS": str(statistics), "VLLM_USE_V2_MODEL_RUNNER": "0"}
        logs = [tmp_path / name for name in ("old", "two", "last")]
        with started(far, logs[0], **old) as of_old, started(near, logs[1]) as of_two:
            first = Server(of_old, ports[0], logs[0])
            second, third = (Server(of_two, port, logs[1]) for port in ports[1:3])
            first.wait_until_healthy()
            second.wait_until_healthy()
            at_once(first, second)
            # A value of eight bits has half the size.
            assert second.cached_tokens() == pytest.approx(2 * first.cached_tokens(), rel=0.02)
            stream_is_whole(first, proxy, lambda: round_trips(statistics))
            loses_what_answers(first, it)
            assert second.tokens(8) == 8
            leaves_its_engine(second, it)
            go.touch()
            third.wait_until_healthy()
            answers(third)
            assert "Offloader set to UVAOffloader" in logs[1].read_text()
            os.kill(third.engine(), signal.SIGKILL)
            # vLLM's server ends when its engine does, with 0.
            assert of_two.wait(60) == 0
        # At once, and with as much memory: that of the killed servers is free.
        last = it.command(*serve(folder, ports[3], EAGER, "--enable-sleep-mode"), share=WHOLE)
        with started(last, logs[2], VLLM_SERVER_DEV_MODE="1", REMOTEGPU_CARRIER="grpc") as of_last:
            fourth = Server(of_last, ports[3], logs[2])
            fourth.wait_until_healthy()
            sleeps(fourth, it)
            of_last.send_signal(signal.SIGTERM)
            assert of_last.wait(120) == 0
        until(lambda: it.leased_bytes() == 0, 30, "the share is back")


def at_once(*servers: Server) -> None:
    asked = [(it, words) for words in (10, 20, 30) for it in servers]
    with ThreadPoolExecutor(len(asked)) as threads:
        assert list(threads.map(lambda one: one[0].tokens(one[1]), asked)) == [words for _, words in asked]


def stream_is_whole(it: Server, proxy: FaultProxy, counted: Callable[[], int]) -> None:
    """The stream is complete though its engine's connections are cut; and a token makes few round trips."""
    before, made = counted(), proxy.made
    proxy.delay(DELAY_MS)
    cuts, had = 0, 0
    for had in it.streamed(TOKENS):
        if had < TOKENS and had // CUT_EVERY > cuts:
            cuts += 1
            proxy.cut()
    proxy.delay(0)
    assert had == TOKENS
    assert proxy.made - made >= cuts == TOKENS // CUT_EVERY - 1
    trips = (counted() - before) / TOKENS
    print(f"{trips} round trips for a token, {proxy.made - made} connections more")
    assert 1 <= trips <= MOST_ROUND_TRIPS


def loses_what_answers(it: Server, appliance: Appliance) -> None:
    """`run` has ended, so its share is free at once, and an engine that still runs has no GPU."""
    leased = appliance.leased_bytes()
    engine = it.kill_what_answers()
    assert it.process.wait(30) == -signal.SIGKILL
    until(lambda: appliance.leased_bytes() == leased // 2, 5, "the share is free")
    assert Path(f"/proc/{engine}").exists()
    assert "the lease has ended: closed by its holder" in it.log.read_text()


def leaves_its_engine(it: Server, appliance: Appliance) -> None:
    """`run` continues with another program, and the engine keeps its memory until it ends."""
    engine = it.kill_what_answers()
    assert it.process.poll() is None
    assert appliance.used_bytes() > 30 * GIB
    os.kill(engine, signal.SIGKILL)
    until(lambda: appliance.used_bytes() < GIB, 5, "the memory is free")


def answers(it: Server) -> None:
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(it.tokens, range(10, 70, 10))) == [10, 20, 30, 40, 50, 60]
    assert list(it.streamed(24))[-1] == 24
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
