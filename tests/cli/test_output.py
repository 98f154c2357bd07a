"""Commands print text of other users safely."""

from __future__ import annotations

from rich.console import Console

from remotegpu.cli.cluster.claims import print_story
from remotegpu.cli.cluster.objects import Cluster, Object
from remotegpu.cli.output import say

CLEARS, TITLE = "\x1b[2J", "\x1b]0;mine\x07"


class Hostile(Cluster):
    """A cluster whose claim and events are commands to a terminal, wherever they may be text."""

    def __init__(self) -> None:
        pass

    def get(self, path: str) -> Object:
        del path
        return {
            "metadata": {"name": "a", "namespace": "team", "uid": "1"},
            "spec": {"pool": f"default{CLEARS}", "count": 1, "fraction": "0.5"},
            "status": {"phase": "Pending", "reason": "NoCapacity", "message": f"waits{TITLE}[red]x[/red]"},
        }

    def list(self, path: str, selector: str = "", fields: str = "") -> list[Object]:
        del path, selector, fields
        return [{"reason": f"R{CLEARS}", "lastTimestamp": "2026-11-29T00:00:00Z", "count": 1, "message": TITLE}]


def test_the_story_of_a_claim_is_text() -> None:
    out = Console(width=1000, color_system=None)
    with out.capture() as captured:
        print_story(out, Hostile(), "team", "a")
    told = captured.get()
    assert "pool default?[2J" in told and "waits?]0;mine?[red]x[/red]" in told
    assert all(letter.isprintable() or letter == "\n" for letter in told)


def test_lines_stay_lines() -> None:
    out = Console(width=1000, color_system=None)
    with out.capture() as captured:
        say(out, "one\n  two [bold]\x9b3m")
    assert captured.get() == "one\n  two [bold]?3m\n"
