"""The ledger of performance: what is compared with what, by numbers that can be checked by hand."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from support.system import ROOT

LEDGER = runpy.run_path(str(ROOT / "tools" / "ledger.py"))
SPLIT = "direct, split"


def run(
    at: str = "2026-01-02T03:04:05+00:00", cpu: str = "Abacus", reference: float = 1.0, **ratios: float | None
) -> dict[str, Any]:
    """A run whose raw TCP takes so many microseconds."""
    machine = {"cpu": cpu, "cpus": 2, "load_average": [0.5, 0.25, 0.0]}
    times = {key: ratio and ratio * reference for key, ratio in ratios.items()}
    figures = {key: time and (1 / time if key.endswith("_gbps") else time) for key, time in times.items()}
    configurations = [{"name": SPLIT, "ratios": ratios, "figures": figures}]
    return {"measured_at": at, "machine": machine, "appliance": "its own", "commit": "abc1234",
            "configurations": configurations}  # fmt: skip


def test_what_is_slower_in_every_repeat_is_a_loss() -> None:
    stored = run(rtt_us=1.0, h2d_gbps=2.0, alloc_us=0.5)
    repeats = [
        run(rtt_us=1.2, h2d_gbps=2.6, alloc_us=0.5),
        run(rtt_us=1.1, h2d_gbps=2.4, alloc_us=0.5),
        run(rtt_us=9.9, h2d_gbps=2.5, alloc_us=0.5),
    ]
    (loss,) = LEDGER["losses"](stored, repeats)
    assert (loss.configuration, loss.figure, loss.before, loss.now) == (SPLIT, "h2d_gbps", 2.0, (2.6, 2.4, 2.5))
    assert str(loss) == "direct, split: h2d_gbps: 2 times raw TCP before, now 2.6, 2.4, 2.5"


def test_a_faster_reference_alone_is_no_loss() -> None:
    stored = run(reference=20, idle_sync_us=1.0, h2d_gbps=1.0)
    assert LEDGER["losses"](stored, [run(reference=10, idle_sync_us=2.0, h2d_gbps=2.0)] * 3) == []
    # Nor a slower machine.
    assert LEDGER["losses"](stored, [run(reference=40, idle_sync_us=1.0, h2d_gbps=1.0)] * 3) == []
    assert len(LEDGER["losses"](stored, [run(reference=20, idle_sync_us=2.0, h2d_gbps=2.0)] * 3)) == 2


def test_what_was_not_measured_is_not_compared() -> None:
    assert LEDGER["losses"](run(rtt_us=1.0), [run(rtt_us=None)] * 3) == []
    assert LEDGER["losses"](run(rtt_us=None), [run(rtt_us=5.0)] * 3) == []
    assert LEDGER["losses"](run(rtt_us=1.0), [run(rtt_us=5.0), run(rtt_us=5.0), run()]) == []


def test_the_newest_run_on_the_same_kind_of_machine_counts(tmp_path: Path) -> None:
    stored = [run("2026-01-03T00:00", rtt_us=3.0), run("2026-01-01T00:00", rtt_us=1.0),
              run("2026-01-04T00:00", "Another", rtt_us=4.0)]  # fmt: skip
    files = [LEDGER["store"](document, tmp_path) for document in stored]
    assert files[0].name == "2026-01-03T0000-abc1234.json"
    found = LEDGER["runs"](tmp_path)
    assert [document["measured_at"][:10] for document in found] == ["2026-01-01", "2026-01-03", "2026-01-04"]
    assert LEDGER["last"](found, run()) == stored[0]
    assert LEDGER["last"](found, run(cpu="A third")) is None


def test_the_same_runs_give_the_same_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    documents = [
        run("2026-01-01T00:00", idle_sync_us=1.0, pinned_h2d_gbps=1.5),
        run("2026-01-02T00:00", idle_sync_us=0.9),
    ]
    pictures = []
    for name in ("one.svg", "two.svg"):
        LEDGER["draw"](documents, tmp_path / name)
        pictures.append((tmp_path / name).read_bytes())
    assert pictures[0] == pictures[1]
    assert b"direct, split" in pictures[0]
