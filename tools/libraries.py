"""Tests libraries from the package index: installs their venvs, runs their cases, and writes the page with the results.

PYTHONPATH=tests python tools/libraries.py install [NAME|SHARD ...]   pinned wheels into target/libraries/NAME
PYTHONPATH=tests python tools/libraries.py run [NAME|SHARD ...] [--write]
                       all cases natively and on a share; --write stores the results and writes the page
PYTHONPATH=tests python tools/libraries.py page                       docs/libraries.md from the stored results
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from support import libraries
from support.libraries import REQUIREMENTS, ROOT, VENVS, Library, Row

RESULTS: Final = ROOT / "docs" / "figures" / "libraries.json"
PAGE: Final = ROOT / "docs" / "libraries.md"
UV: Final = "uv==0.13.9"
BEGIN: Final = "<!-- begin: tools/libraries.py page -->"
END: Final = "<!-- end -->"


def chosen(names: Sequence[str]) -> list[Library]:
    """Returns the libraries of these names or shards; all without names."""
    table = libraries.load()
    known = {*table, *(each.shard for each in table.values())}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(
            f"{libraries.TABLE} has no library or shard {unknown[0]!r}; it has {', '.join(sorted(known - {''}))}"
        )
    return [each for each in table.values() if not names or each.name in names or each.shard in names]


def uv() -> str:
    """Returns the path of uv, which links files that several venvs share (pip would copy gigabytes).

    Installs it first if necessary.
    """
    venv = VENVS / ".uv"
    if not (venv / "bin" / "uv").exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, UV], check=True)
    return str(venv / "bin" / "uv")


def install(wanted: Iterable[Library]) -> None:
    """Makes each venv whose requirements have changed, with only the required packages."""
    environment = {"UV_CACHE_DIR": str(VENVS / ".cache")} | os.environ
    for name in dict.fromkeys(each.venv or each.name for each in wanted):
        venv, pinned, script = VENVS / name, REQUIREMENTS / f"{name}.txt", REQUIREMENTS / f"{name}.sh"
        installed = venv / ".installed"
        wants = pinned.read_text() + (script.read_text() if script.exists() else "")
        if installed.exists() and installed.read_text() == wants:
            continue
        print(f"==> {name} into {venv.relative_to(ROOT)}", flush=True)
        filled: list[str | Path] = [uv(), "pip", "install", "--quiet", "--no-deps", "--python", venv, "-r", pinned]
        # A package without a wheel is built by a script with its name.
        steps: list[list[str | Path]] = [
            [uv(), "venv", "--quiet", "--clear", "--python", sys.executable, venv],
            [script, venv, uv(), pinned] if script.exists() else filled,
        ]
        for step in steps:
            if subprocess.run(step, env=environment, cwd=ROOT, check=False).returncode != 0:
                failed = " ".join(map(str, step))
                raise SystemExit(f"{name} could not be installed: {failed} failed; look at {pinned}")
        installed.write_text(wants)


def stored(file: Path = RESULTS) -> dict[str, Row]:
    content = json.loads(file.read_text()) if file.exists() else {"rows": []}
    # JSON has lists instead of tuples.
    made = [Row(**each | {"failed": {k: tuple(v) for k, v in each["failed"].items()}}) for each in content["rows"]]
    return {row.library: row for row in made}


def store(rows: Mapping[str, Row], file: Path = RESULTS) -> None:
    """Stores the rows in the order of the table. Drops libraries that the table does not name any more."""
    kept = [dataclasses.asdict(rows[name]) for name in libraries.load() if name in rows]
    file.write_text(json.dumps({"table": "libraries", "rows": kept}, indent=1, ensure_ascii=False) + "\n")


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def lines(rows: Iterable[Row], table: Mapping[str, Library]) -> list[str]:
    """Returns the table in Markdown. A failed case shows the cause that `table` names, otherwise its message.

    Cases with the same cause share one entry.
    """
    made = [
        "| library | version | cases | natively | on a share | error | same bits | fails or is refused | date |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        library, both = table[row.library], row.cases - len(row.failed)
        by_cause: dict[str, list[str]] = {}
        for case, (ways, said) in row.failed.items():
            by_cause.setdefault(f"{library.due.get(case, said)} ({ways})", []).append(f"`{case}`")
        refused = [f"{', '.join(of)}: {cause}" for cause, of in by_cause.items()]
        refused += [f"`{case}` has other bits from run to run: {why}" for case, why in library.differs.items()]
        refused += [library.gives] if library.gives else []
        refused += [f"`{name}={value}` is set" for name, value in library.environment.items() if "{" not in value]
        error, bits = (f"{row.error:.1g}", f"{row.same_bits} of {both}") if both else ("-", "-")
        counts = [row.library, row.version, row.cases, row.native, row.share, error, bits]
        columns = [*counts, "; ".join(refused) or "-", row.date]
        made.append("| " + " | ".join(cell(str(each)) for each in columns) + " |")
    return made


def page(text: str, rows: Mapping[str, Row]) -> str:
    """Returns the page with a new table between its marks."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    table = libraries.load()
    made = lines([rows[name] for name in table if name in rows], table)
    for each in table.values():
        if each.name not in rows:
            made.append(f"| {each.name} | {each.version()} | {len(each.cases())} | not run | not run | - | - | - | - |")
    return "\n".join([f"{before}{BEGIN}", *made, f"{END}{after}"])


def run(wanted: Iterable[Library], write: bool) -> int:
    """Runs the cases and prints how many are right. Returns 1 if a case fails that `due` does not list."""
    wrong = 0
    for each in wanted:
        found = libraries.both(each.name)
        row = libraries.row(each, found["native"], found["share"])
        print(
            f"{each.name}: {row.native} and {row.share} of {row.cases} right, {row.same_bits} with the same bits",
            flush=True,
        )
        for case, (ways, said) in row.failed.items():
            print(f"    {case}: {said} ({ways})", flush=True)
            wrong += case not in each.due
        if write:
            store(stored() | {each.name: row})
            PAGE.write_text(page(PAGE.read_text(), stored()))
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["install", "run", "page"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    # SIGTERM raises SystemExit, so that started processes are ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if arguments.command == "install":
        install(chosen(arguments.names))
    elif arguments.command == "run":
        return run(chosen(arguments.names), arguments.write)
    else:
        PAGE.write_text(page(PAGE.read_text(), stored()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
