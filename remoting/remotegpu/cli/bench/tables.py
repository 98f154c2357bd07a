"""Turns a document into tables: one for each placement and delay, with a column for each carrier. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remotegpu.cli.bench.report import FIGURES, REFERENCES


@dataclass(frozen=True, slots=True)
class TextTable:
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        lines = [f"| {' | '.join(cells)} |" for cells in (self.header, ["---"] * len(self.header), *self.rows)]
        return "\n".join([f"**{self.title}**", "", *lines])


def tables(document: Mapping[str, Any]) -> list[TextTable]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for result in document["configurations"]:
        groups.setdefault(result["place"], []).append(result)
    found = [_figures(title, results) for title, results in groups.items()]
    aimed = [result for result in document["configurations"] if result["aims"]]
    return [*found, _aims(aimed)] if aimed else found


def heading(document: Mapping[str, Any]) -> str:
    """Returns one line about the machine and the conditions of the measurement."""
    machine = document["machine"]
    load = "/".join(f"{value:.1f}" for value in machine["load_average"])
    text = (
        f"remotegpu {document['version']} on {machine['cpu']}, {machine['cpus']} CPUs, Linux {machine['kernel']}, "
        f"load {load}, {document['measured_at']}; {document['appliance']}; medians of {document['runs']} runs, "
        f"in brackets the ratio to raw TCP; demo_step_round_trips {number(document['demo_step_round_trips'])}"
    )
    return "; ".join([text, *document["notes"]])


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _figures(title: str, results: Sequence[Mapping[str, Any]]) -> TextTable:
    header = ["", *(result["transport"] for result in results)]
    rows = [[key, *(_cell(result, key) for result in results)] for key in FIGURES]
    rows += [[key, *(number(result["references"][key]) for result in results)] for key in REFERENCES]
    return TextTable(title, header, rows)


def _cell(result: Mapping[str, Any], key: str) -> str:
    text = number(result["figures"][key])
    ratio = result["ratios"].get(key)
    return text if ratio is None else f"{text} ({ratio:.2f})"


def _aims(results: Sequence[Mapping[str, Any]]) -> TextTable:
    header = ["aim", *(result["name"] for result in results)]
    columns = [result["aims"] for result in results]
    rows = [[f"{aims[0]['key']}, {aims[0]['of']}", *map(_verdict, aims)] for aims in zip(*columns, strict=True)]
    return TextTable("Aims", header, rows)


def _verdict(aim: Mapping[str, Any]) -> str:
    said = {True: "reached", False: "missed", None: "not measured"}[aim["reached"]]
    return f"{number(aim['value'])}, at most {number(aim['at_most'])}: {said}"
