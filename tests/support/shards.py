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
# A commit up to this time before the newest one belongs to the same change.
CHANGE_SECONDS: Final = 12 * 3600


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
    by_hand: tuple[ByHand, ...] = ()

    def forced(self, shard: Shard, changed: list[str]) -> bool:
        """Whether a changed file forces the shard: by `forced_by`, or because the shard has all tests of the file."""
        paths = [*shard.forced_by, *(test for test in shard.tests if "::" not in test)]
        return any(names(path, file) for path in paths for file in changed)

    def entries(self) -> list[tuple[str, str]]:
        """Returns each path or test id with its part."""
        return [*((test, CORE) for test in self.core), *((test, s.name) for s in self.shards for test in s.tests)]

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
        """Returns the shards that a hash or a change may choose."""
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
    return Table(tuple(shards), tuple(content["core"]["tests"]), tuple(ByHand(**each) for each in content["by_hand"]))


def load_passes(table: Table, file: Path = PASSED) -> dict[str, Pass]:
    """Returns the last pass of each shard that has passed. Raises ShardError for a shard that is not in the table."""
    passes = {name: Pass(each["commit"], str(each["date"])) for name, each in tomllib.loads(file.read_text()).items()}
    for name in passes:
        table.find(name)
    return passes


def choose(table: Table, passes: dict[str, Pass], changed: list[str], asked: str = "") -> Turn:
    """Chooses the shard of a run: the requested one, else the one whose last pass is the oldest.

    The second rule considers the shards that a change forces or, if there are none, all in turn. Raises ShardError.
    """
    if asked == NONE:
        return Turn(None, "REMOTEGPU_SHARD=none")
    if asked:
        return Turn(table.find(asked), f"REMOTEGPU_SHARD={asked}")
    forced = [shard for shard in table.in_turn() if table.forced(shard, changed)]
    among = forced or table.in_turn()
    shard = min(among, key=lambda each: passes[each.name].date if each.name in passes else "")
    when = f"passed last on {passes[shard.name].date}" if shard.name in passes else "has no known pass"
    why = f"it {when}, of {', '.join(each.name for each in among)}"
    return Turn(shard, f"{why}, which the last changes force" if forced else why)


def due(table: Table, passes: dict[str, Pass], tree: str, root: Path = ROOT) -> list[Shard]:
    """Returns the shards that a change since their last pass forces, and the shards that never passed."""

    def changed_since(commit: str) -> list[str]:
        return git("diff", "--name-only", "--no-renames", commit, tree, root=root).splitlines()

    return [
        shard
        for shard in table.shards
        if shard.name not in passes or table.forced(shard, changed_since(passes[shard.name].commit))
    ]


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


def base(root: Path = ROOT) -> str:
    """Returns the commit with which the tree is compared to find changes.

    It is the merge base with origin/main, if HEAD is not merged; else the newest commit that is 12 hours older than
    HEAD; else the empty tree, so that everything has changed.

    In a clone whose HEAD is origin/main no commit marks the last merge, so the time decides.
    """
    head = git("rev-parse", "HEAD", root=root)
    try:
        left = git("merge-base", "HEAD", "origin/main", root=root)
    except ShardError:
        left = head
    if left != head:
        return left
    newest = int(git("show", "--no-patch", "--format=%ct", "HEAD", root=root))
    older = git("rev-list", "-1", f"--before={newest - CHANGE_SECONDS}", "HEAD", root=root)
    return older or git("hash-object", "-t", "tree", os.devnull, root=root)


def changed_files(tree: str, root: Path = ROOT) -> list[str]:
    # git knows the empty tree even if it is not in the object store.
    return git("diff", "--name-only", "--no-renames", base(root), tree, root=root).splitlines()
