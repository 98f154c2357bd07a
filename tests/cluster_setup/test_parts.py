"""Processes that outlive the one that starts them, known only by a record."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.parts import Part, start_time
from support.system import until


@pytest.fixture
def part(tmp_path: Path) -> Iterator[Part]:
    it = Part(tmp_path, "sleeper")
    yield it
    it.kill()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_part_is_killed_and_started_again_by_its_record(part: Part) -> None:
    assert part.pid is None
    first = part.launch(["sleep", "600"])
    assert part.pid == first
    assert part.start() == first, "what runs is not started twice"
    part.kill()
    assert part.pid is None
    again = Part(part.state, part.name)
    assert again.start() == part.pid
    assert part.pid not in {None, first}


def test_a_paused_part_exists_continues_and_can_be_ended(part: Part) -> None:
    pid = part.launch(["sleep", "600"])
    part.pause()
    until(lambda: state(pid) == "T", 5, "the process is stopped")
    assert part.pid == pid
    part.resume()
    until(lambda: state(pid) == "S", 5, "the process continues")
    part.pause()
    part.stop()
    assert part.pid is None


def test_what_a_part_prints_is_in_its_log(part: Part) -> None:
    part.launch(["sh", "-c", "echo out; echo err >&2"])
    until(lambda: part.log.read_text().split() == ["out", "err"], 5, "both lines")


def test_another_process_of_the_same_number_is_left_alone(part: Part) -> None:
    """A record from before a reboot has a number that belongs to another process now: here, to this test."""
    part.launch(["sleep", "600"])
    part.kill()
    record = part.state / "parts" / "sleeper.json"
    content = json.loads(record.read_text())
    record.write_text(json.dumps({**content, "pid": os.getpid()}))
    assert start_time(os.getpid()) is not None
    assert part.pid is None
    part.stop()


def test_signalling_a_part_that_has_ended_says_where_its_log_is(part: Part) -> None:
    with pytest.raises(RuntimeError, match=r"\bsleeper\b.*\bsleeper\.log\b"):
        part.pause()
