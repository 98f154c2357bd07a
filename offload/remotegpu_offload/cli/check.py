"""`remotegpu offload check`: checks the configuration against the user's interpreter."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape

from remotegpu_offload import config as configuration
from remotegpu_offload.cli import interpreter

_STYLES: Final = {"OK": "green", "NOTE": "yellow", "FAIL": "red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `line` is the line of the configuration, from 1; 0 if the finding belongs to no line."""

    level: str
    line: int
    subject: str
    text: str


def check(config: Path | None, python: str | None, *, as_json: bool) -> bool:
    """Prints the report. Returns whether it has no FAIL. Raises CliError if the interpreter cannot run."""
    chosen = interpreter.chosen(python)
    source, findings = _findings(config, chosen)
    good = all(finding.level != "FAIL" for finding in findings)
    if as_json:
        entries = [{"level": f.level, "line": f.line, "subject": f.subject, "text": f.text} for f in findings]
        print(json.dumps({"config": source, "python": chosen, "good": good, "findings": entries}, indent=2))  # noqa: T201
        return good
    console = Console(highlight=False, soft_wrap=True)
    console.print(escape(f"{source or 'no remotegpu.yaml'}, for {chosen}"))
    for finding in findings:
        place = f"line {finding.line}, " if finding.line else ""
        level = f"[{_STYLES[finding.level]}]{finding.level:<4}[/]"
        console.print(f"{level} {escape(f'{place}{finding.subject}: {finding.text}')}")
    return good


def _findings(config: Path | None, python: str) -> tuple[str | None, list[Finding]]:
    try:
        loaded = configuration.load(config)
    except configuration.ConfigError as error:
        return error.source, [Finding("FAIL", p.line, p.where, p.message) for p in error.problems]
    request = {"folder": str(loaded.folder), "config": configuration.dump(loaded), "given": bool(loaded.source)}
    answer = interpreter.ask(
        python, "remotegpu_offload.config.check", stdin=json.dumps(request), directory=loaded.folder
    )
    lines = [rule.line for rule in loaded.rules]
    findings = [
        Finding(
            entry["level"], lines[entry["rule"]] if entry["rule"] is not None else 0, entry["subject"], entry["text"]
        )
        for entry in json.loads(answer.splitlines()[-1])
    ]
    return str(loaded.source) if loaded.source else None, findings
