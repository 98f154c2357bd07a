"""Writes the chart's Grafana boards: `python tools/generate_boards.py [FOLDER]`.

A panel is one line in tools/boards.yaml, and 40 lines in Grafana's own format.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[1]
TABLE: Final = ROOT / "tools" / "boards.yaml"
FOLDER: Final = ROOT / "charts" / "remotegpu" / "files" / "boards"
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
# Grafana's grid has 24 columns. Panels of single figures are small, those of graphs are large.
SIZES: Final = {"stat": (6, 4), "timeseries": (12, 8), "table": (24, 8)}
OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "stat": {"reduceOptions": {"calcs": ["lastNotNull"]}},
    "timeseries": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
    "table": {},
}


def board(name: str, described: dict[str, Any]) -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    x = y = height = 0
    for number, row in enumerate(described["panels"], 1):
        kind = row.get("type", "timeseries")
        wide, high = SIZES[kind]
        if x + wide > 24:
            x, y, height = 0, y + height, 0
        place = {"x": x, "y": y, "w": wide, "h": high}
        x, height = x + wide, max(height, high)
        panels.append(panel(number, kind, row, place))
    return {
        "uid": f"remotegpu-{name}",
        "title": f"remotegpu: {name}",
        "description": described["description"],
        "tags": ["remotegpu"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_source(), *(_variable(*each) for each in described["variables"].items())]},
        "panels": panels,
    }


def panel(number: int, kind: str, row: dict[str, Any], place: dict[str, int]) -> dict[str, Any]:
    """Returns a panel in Grafana's format. `row["show"]` maps legends to expressions."""
    targets = [
        {"refId": chr(ord("A") + index), "datasource": DATASOURCE, "expr": expression, "legendFormat": str(legend)}
        for index, (legend, expression) in enumerate(row["show"].items())
    ]
    if kind == "table":
        targets = [each | {"format": "table", "instant": True} for each in targets]
    return {
        "id": number,
        "type": kind,
        "title": row["title"],
        "description": row.get("description", ""),
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": row["unit"]} | row.get("field", {}), "overrides": []},
        "options": OPTIONS[kind],
        "targets": targets,
    }


def _source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def boards() -> dict[str, dict[str, Any]]:
    return {name: board(name, described) for name, described in yaml.safe_load(TABLE.read_text()).items()}


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(exist_ok=True)
    for name, content in boards().items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
