"""The report of `remotegpu bench`, computed from measurements by pure functions; numbers can be checked by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from remotegpu.cli.app import app
from remotegpu.cli.bench.matrix import Configuration, ends, matrix, of_another_appliance
from remotegpu.cli.bench.report import AIMS, FIGURES, Run, ratio, summary
from remotegpu.cli.bench.tables import heading, tables

BEFORE = {"raw_tcp_rtt_us": 40.0, "raw_tcp_message_us": 1.0, "raw_tcp_put_gbps": 20.0, "raw_tcp_get_gbps": 10.0}
AFTER = {"raw_tcp_rtt_us": 60.0, "raw_tcp_message_us": 3.0, "raw_tcp_put_gbps": 20.0, "raw_tcp_get_gbps": 10.0}
LOCAL = Configuration("direct")


def run(**figures: float | None) -> Run:
    return Run(figures, BEFORE, AFTER)


def document(*results: dict[str, Any]) -> dict[str, Any]:
    machine = {"cpu": "Abacus", "cpus": 2, "kernel": "6.1", "load_average": [0.5, 0.25, 0.0]}
    return {
        "version": "1.2.3", "measured_at": "2026-01-02T03:04:05+00:00", "machine": machine, "appliance": "its own",
        "quick": False, "runs": 3, "notes": ["only one CPU"], "demo_step_round_trips": 1.0, "configurations": results,
    }  # fmt: skip


def test_ratios_are_times_of_the_reference_in_the_same_run() -> None:
    result = summary(
        LOCAL, [run(rtt_us=60.0, launch_caller_us=1.0, h2d_gbps=16.0, d2h_gbps=10.0, init_ms=5.0)], with_aims=True
    )
    assert result["references"]["raw_tcp_rtt_us"] == 50.0, "the mean of before and after"
    assert result["ratios"]["rtt_us"] == pytest.approx(1.2)
    assert result["ratios"]["launch_caller_us"] == pytest.approx(0.5)
    assert result["ratios"]["h2d_gbps"] == pytest.approx(1.25), "the same bytes take 20/16 of the time"
    assert result["ratios"]["d2h_gbps"] == pytest.approx(1.0)
    assert result["ratios"]["init_ms"] == pytest.approx(100.0), "5,000 us against 50 us"


def test_medians_are_taken_over_runs_and_of_each_run_s_own_ratio() -> None:
    slow_machine = Run({"rtt_us": 300.0}, {**BEFORE, "raw_tcp_rtt_us": 100.0}, {**AFTER, "raw_tcp_rtt_us": 100.0})
    result = summary(LOCAL, [run(rtt_us=50.0), slow_machine, run(rtt_us=100.0)], with_aims=False)
    assert result["figures"]["rtt_us"] == 100.0
    assert result["ratios"]["rtt_us"] == 2.0
    assert result["ratio_ranges"]["rtt_us"] == [1.0, 3.0]


def test_what_was_not_measured_has_no_ratio() -> None:
    assert ratio("rtt_us", None, "raw_tcp_rtt_us", 40.0) is None
    assert ratio("rtt_us", 40.0, "raw_tcp_rtt_us", None) is None
    result = summary(LOCAL, [Run({"rtt_us": 50.0, "init_round_trips": None}, {}, {})], with_aims=True)
    assert result["ratios"]["rtt_us"] is None
    assert {aim["reached"] for aim in result["aims"]} == {None}


def test_a_result_has_every_key_and_is_json() -> None:
    result = json.loads(json.dumps(summary(LOCAL, [run(rtt_us=50.0)], with_aims=True)))
    assert list(result["figures"]) == list(FIGURES)
    assert set(result["references"]) == {reference for reference in FIGURES.values() if reference}
    assert set(result["ratios"]) == {key for key, reference in FIGURES.items() if reference}
    assert {aim["key"] for aim in result["aims"]} == {aim.key for aim in AIMS}
    assert (result["carrier"], result["tls"], result["placement"], result["delay_ms"]) == ("direct", False, "split", 0)


def test_aims_depend_on_the_placement() -> None:
    measured = [run(rtt_us=65.0, launch_to_exec_us=125.0)]

    def reached(configuration: Configuration) -> dict[str, bool | None]:
        return {aim["key"]: aim["reached"] for aim in summary(configuration, measured, with_aims=True)["aims"]}

    assert reached(Configuration("direct", placement="split"))["rtt_us"] is False, "1.3 round trips; the aim is 1.2"
    assert reached(Configuration("direct", placement="same"))["rtt_us"] is True, "the aim is 1.5"
    assert reached(LOCAL)["launch_to_exec_us"] is True, "100 and half of 50"
    for other in (Configuration("grpc"), Configuration("direct", tls=True), Configuration("direct", delay_ms=1)):
        assert not reached(other)


def test_the_default_matrix_is_short_and_the_whole_one_whole() -> None:
    few, notes = matrix([0, 1], everything=False)
    assert [c.name for c in few] == [
        "same host, split",
        "direct, split",
        "direct, same",
        "grpc, split",
        "same host, free",
        "direct, free",
        "no wire, same",
    ]
    assert not notes
    every, _ = matrix([0, 1], everything=True)
    assert len(set(every)) == len(every) == 21
    assert {(c.carrier, c.tls, c.placement) for c in every if not c.delay_ms and c.carrier != "none"} == {
        (carrier, tls, place) for carrier in ("direct", "grpc") for tls in (False, True) for place in ("split", "same")
    } | {("auto", False, place) for place in ("split", "same", "free")} | {("direct", False, "free")}
    assert {(c.carrier, c.tls, c.delay_ms) for c in every if c.delay_ms} == {
        (carrier, tls, ms) for carrier in ("direct", "grpc") for tls in (False, True) for ms in (1, 10)
    }


def test_the_benchmark_warns_that_one_cpu_is_too_few_for_two_ends() -> None:
    for everything in (False, True):
        configurations, notes = matrix([3], everything=everything)
        assert {c.placement for c in configurations} == {"same"}
        assert notes == ["only one CPU may be used here: the ends cannot be on two"]


def test_ends() -> None:
    assert ends("split", [2, 5, 7]) == ({2}, {5})
    assert ends("same", [2, 5, 7]) == ({2}, {2})
    assert ends("free", [2, 5, 7]) == ({2, 5, 7}, {2, 5, 7})


def test_an_appliance_of_somebody_else_is_not_pinned() -> None:
    configurations, notes = of_another_appliance(tls=True)
    assert [(c.carrier, c.tls, c.placement) for c in configurations] == [
        ("direct", True, "free"),
        ("grpc", True, "free"),
    ]
    assert "no end is pinned" in notes[0]


def test_tables_have_a_column_for_each_way_of_carrying() -> None:
    shown = document(
        summary(LOCAL, [run(rtt_us=60.0, launches_per_s=1234567.0)], with_aims=True),
        summary(Configuration("grpc"), [run(rtt_us=100.0)], with_aims=True),
        summary(Configuration("direct", tls=True, delay_ms=10), [run(rtt_us=None)], with_aims=True),
    )
    near, far, aims = tables(shown)
    assert near.title == "ends on two CPUs"
    assert list(near.header) == ["", "direct", "grpc"]
    rows = {row[0]: list(row[1:]) for row in near.rows}
    assert rows["rtt_us"] == ["60 (1.20)", "100 (2.00)"]
    assert rows["launches_per_s"] == ["1,234,567", "-"]
    assert rows["raw_tcp_rtt_us"] == ["50", "50"]
    assert (far.title, list(far.header)) == ("ends on two CPUs, 10 ms each way", ["", "direct with TLS"])
    assert ["rtt_us, ratio", "1.2, at most 1.2: reached"] in [list(row) for row in aims.rows]
    assert "| rtt_us | 60 (1.20) | 100 (2.00) |" in near.markdown().splitlines()
    for word in ("1.2.3", "Abacus", "2 CPUs", "6.1", "0.5/0.2/0.0", "only one CPU"):
        assert word in heading(shown)


def test_a_saved_document_can_be_shown_again(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(document(summary(LOCAL, [run(rtt_us=60.0)], with_aims=True))))
    done = CliRunner().invoke(app, ["bench", "--from", str(file), "--markdown"])
    assert done.exit_code == 0, done.output
    assert "| rtt_us | 60 (1.20) |" in done.stdout
    again = CliRunner().invoke(app, ["bench", "--from", str(file), "--json"])
    assert json.loads(again.stdout) == json.loads(file.read_text())
