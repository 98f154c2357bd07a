"""Assigns each test to a part of CI, and chooses the shard of a run.

The table is `.ci/shards.toml`; `.ci/passed.toml` has the commit at which each shard last passed.

A part is `core`, which `make test` runs, `api`, which each run of CI executes too, or a shard, of which a run executes
one. The longest entry of the table that matches a test decides. A test without a matching entry is in `api` if it
starts an API server, else in `core`. So each test is in exactly one part.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
TABLE: Final = ROOT / ".ci" / "shards.toml"
PASSED: Final = ROOT / ".ci" / "passed.toml"
CORE: Final = "core"
API: Final = "api"
NONE: Final = "none"


class ShardError(Exception):
    """An error with a message that has the cause, the place and the next step."""


@dataclass(frozen=True, slots=True)
class Shard:
    name: str
    what: str
    tests: tuple[str, ...]
    # Folders and files. A change in them forces this shard.
    forced_by: tuple[str, ...]
    # The reason why the shard runs only if REMOTEGPU_SHARD names it; else empty.
    by_hand: str = ""
    # The mark of its tests, if pytest deselects them by default.
    mark: str = ""


@dataclass(frozen=True, slots=True)
class ByHand:
    """Tests that CI does not run: their mark, and the target of the Makefile that runs them."""

    mark: str
    target: str
    what: str


@dataclass(frozen=True, slots=True)
class Table:
    shards: tuple[Shard, ...]
    core: tuple[str, ...]
    api: tuple[str, ...] = ()
    by_hand: tuple[ByHand, ...] = ()

    def forced(self, shard: Shard, changed: list[str]) -> bool:
        """Whether a changed file forces the shard: by `forced_by`, or because the shard has all tests of the file."""
        paths = [*shard.forced_by, *(test for test in shard.tests if "::" not in test)]
        return any(names(path, file) for path in paths for file in changed)

    def entries(self) -> list[tuple[str, str]]:
        """Returns each path or test id with its part."""
        shards = [(test, shard.name) for shard in self.shards for test in shard.tests]
        return [*((test, CORE) for test in self.core), *((test, API) for test in self.api), *shards]

    def part_of(self, test: str, marks: Collection[str] = ()) -> str:
        """Returns the part of a test by its id (`tests/cli/test_run.py::test_signals[1]`) and its marks' names."""
        naming = [(len(entry), part) for entry, part in self.entries() if names(entry, test)]
        part = max(naming)[1] if naming else CORE
        return API if part == CORE and "apiserver" in marks else part

    def find(self, asked: str) -> Shard:
        """Returns a shard by its name, or by its number from 1 on. Raises ShardError."""
        for number, shard in enumerate(self.shards, 1):
            if asked in {shard.name, str(number)}:
                return shard
        known = ", ".join(f"{number} {shard.name}" for number, shard in enumerate(self.shards, 1))
        raise ShardError(f"there is no shard {asked!r} in {TABLE}; REMOTEGPU_SHARD takes one of {known}, or {NONE}")

    def number(self, shard: Shard) -> int:
        return self.shards.index(shard) + 1

    def in_turn(self) -> list[Shard]:
        """Returns the shards that have a turn."""
        return [shard for shard in self.shards if not shard.by_hand]


@dataclass(frozen=True, slots=True)
class Pass:
    """The last run in which all tests of a shard passed."""

    commit: str
    date: str


@dataclass(frozen=True, slots=True)
class Turn:
    shard: Shard | None
    why: str


def names(entry: str, test: str) -> bool:
    """Whether an entry matches a test: its id, function, file or a folder. A `*` at the end is any text."""
    if entry.endswith("*"):
        return test.startswith(entry[:-1])
    return test == entry or test.startswith((f"{entry}::", f"{entry}[", f"{entry.rstrip('/')}/"))


def load(file: Path = TABLE) -> Table:
    content = tomllib.loads(file.read_text())
    shards = [
        Shard(
            each["name"], each["what"], tuple(each["tests"]), tuple(each.get("forced_by", ())),
            each.get("by_hand", ""), each.get("mark", ""),
        )
        for each in content["shard"]
    ]  # fmt: skip
    by_hand = tuple(ByHand(**each) for each in content["by_hand"])
    return Table(tuple(shards), tuple(content["core"]["tests"]), tuple(content["api"]["tests"]), by_hand)


def load_passes(table: Table, file: Path = PASSED) -> dict[str, Pass]:
    """Returns the last pass of each shard that has passed. Raises ShardError for a shard that is not in the table."""
    passes = {name: Pass(each["commit"], str(each["date"])) for name, each in tomllib.loads(file.read_text()).items()}
    for name in passes:
        table.find(name)
    return passes


def choose(table: Table, passes: dict[str, Pass], due_now: list[Shard], asked: str = "") -> Turn:
    """Chooses the shard of a run: the requested one, else of those that are due, or of all if none is, the one that
    passed longest ago. A shard without a known pass comes before the others, in the order of the table.
    """
    if asked == NONE:
        return Turn(None, "REMOTEGPU_SHARD=none")
    if asked:
        return Turn(table.find(asked), f"REMOTEGPU_SHARD={asked}")
    among = [shard for shard in table.in_turn() if shard in due_now] or table.in_turn()
    shard = min(among, key=lambda each: passes[each.name].date if each.name in passes else "")
    when = f"passed last on {passes[shard.name].date}" if shard.name in passes else "has no known pass"
    return Turn(shard, f"it {when}, of {', '.join(each.name for each in among)}")


def due(table: Table, passes: dict[str, Pass], tree: str, root: Path = ROOT) -> list[Shard]:
    """Returns the shards that a change since their last pass forces, and those without a known pass.

    A pass at a commit that this clone does not have is not known.
    """

    def is_due(shard: Shard) -> bool:
        try:
            changed = git("diff", "--name-only", "--no-renames", passes[shard.name].commit, tree, root=root)
        except (KeyError, ShardError):
            return True
        return table.forced(shard, changed.splitlines())

    return list(filter(is_due, table.shards))


def git(*arguments: str, root: Path = ROOT, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, check=False, env=os.environ | (environment or {})
    )
    if done.returncode != 0:
        raise ShardError(
            f"git {' '.join(arguments)} failed in {root}: {done.stderr.strip()}; choose with REMOTEGPU_SHARD"
        )
    return done.stdout.strip()


def tree_hash(root: Path = ROOT) -> str:
    """Returns the git hash of all files in the working tree, committed or not. In a clean clone it is the commit's."""
    index = Path(git("rev-parse", "--path-format=absolute", "--git-path", "index", root=root))
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / "index"
        if index.exists():
            shutil.copy(index, own)
        environment = {"GIT_INDEX_FILE": str(own)}
        git("add", "--all", root=root, environment=environment)
        return git("write-tree", root=root, environment=environment)
