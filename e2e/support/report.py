"""The report of an e2e run, for people and for programs: target/e2e/report.json and a table."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Row:
    test: str
    result: str
    seconds: float
    reason: str = ""


@dataclass
class Report:
    server_version: str = "unknown"
    started: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    rows: list[Row] = field(default_factory=list)

    def write(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(self), indent=2) + "\n")

    def table(self) -> str:
        width = max((len(row.test) for row in self.rows), default=4)
        lines = [f"Kubernetes {self.server_version}, {self.started}", f"{'test':<{width}}  result   seconds"]
        lines += [
            f"{row.test:<{width}}  {row.result:<7}  {row.seconds:7.1f}  {row.reason}".rstrip() for row in self.rows
        ]
        return "\n".join(lines)
