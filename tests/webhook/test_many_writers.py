"""Tests with many concurrent writers: every pod with a share is rewritten, and no pod waits long for the webhook."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.webhook import measure, table
from support.apiserver import api_server
from support.webhook import Admission, issue, replica

# The aims are 50 pods a second, 1.5 times the time without a webhook, and 50 ms for a request. In this test both
# replicas, the API server, etcd and the writers share two CPUs with other programs, and a handler waits for a CPU most
# of its time. So the limits on times are loose, but far below the API server's timeout of 10 s. The limit on the
# webhook's work is in CPU time.
MOST_TIMES_AS_LONG = 6
MOST_P99_MS = 2000
MOST_CPU_MS = 5
LEAST_PER_SECOND = 20


@pytest.mark.parametrize(
    ("pods", "writers", "rounds"),
    [
        pytest.param(200, 200, 1, id="smoke"),
        pytest.param(1028, 64, 3, marks=[pytest.mark.thorough, pytest.mark.timeout(900)], id="64-writers"),
        pytest.param(2000, 200, 3, marks=[pytest.mark.thorough, pytest.mark.timeout(900)], id="200-writers"),
    ],
)
def test_no_pod_passes_unseen(tmp_path: Path, pods: int, writers: int, rounds: int) -> None:
    """`measure` lists the stored pods and checks that exactly the pods that asked for a share are gated."""
    authority = issue(tmp_path)
    with (
        api_server() as server,
        replica(tmp_path, "--reuse-port") as one,
        replica(tmp_path, "--reuse-port", port=one.port) as other,
    ):
        result = measure(Admission(server, one, authority), [one, other], pods, writers, rounds)
    print(table(result))
    assert sum(result.requests_per_replica) == pods * rounds
    assert result.with_per_second > LEAST_PER_SECOND
    assert result.ratio > 1 / MOST_TIMES_AS_LONG
    assert result.handler_p99_ms < MOST_P99_MS
    assert result.webhook_cpu_ms_per_pod < MOST_CPU_MS
