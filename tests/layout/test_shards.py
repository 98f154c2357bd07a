"""Every test is in core, in exactly one shard, or run by hand; and the choice of a shard is repeatable."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support import shards
from support.shards import API, CORE, ByHand, Pass, Shard, ShardError, Table

ROOT = shards.ROOT
TABLE = shards.load()
PARTS = {CORE, API, *(shard.name for shard in TABLE.shards)}
TORCH = {"torch-a", "torch-b"}
# Tests that are collected only where torch is installed.
TORCH_FILES = sorted(str(file.relative_to(ROOT)) for file in (ROOT / "offload" / "tests" / "torch").glob("test_*.py"))


def listed(*arguments: str) -> dict[str, list[str]]:
    """Returns the tests that pytest would run, with the marks of each."""
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "support" / "list_tests.py", *arguments],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT / "tests")}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def collected() -> dict[str, list[str]]:
    """Every test, whatever its marks. Two runs: files in tests/ and in e2e/ have the same names."""
    return {**listed("-m", "", "tests", "offload/tests"), **listed("-m", "", "e2e")}


def commands(target: str) -> str:
    """Returns the commands that make would run for a target, as if no file were built yet."""
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", "REMOTEGPU_E2E_CONTEXT=any", target],
        cwd=ROOT, env=os.environ | {"REMOTEGPU_SHARD": "none"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


def test_every_test_is_run_by_a_part_that_can_run_it(collected: dict[str, list[str]]) -> None:
    """Core and the other shards have no torch, and the torch shards run nothing else; of what e2e marks `make test-e2e`
    runs core's and the shard's.
    """
    assert len(collected) > 3000
    by_hand = {each.mark for each in TABLE.by_hand}
    nowhere = [
        test
        for test, marks in collected.items()
        if ("frameworks" in marks) != (TABLE.part_of(test, marks) in TORCH) and not by_hand & set(marks)
    ]
    assert nowhere == []
    for shard in TABLE.shards:
        own = {test for test in collected if TABLE.part_of(test) == shard.name}
        if shard.mark:
            assert own == {test for test, marks in collected.items() if shard.mark in marks}
    assert {TABLE.part_of(test, marks) for test, marks in collected.items()} | TORCH == PARTS
    # An entry is a process, and torch keeps a device for good: each file is an entry.
    entries = {entry: part for entry, part in TABLE.entries() if part in TORCH}
    assert [file for file in TORCH_FILES if file not in entries] == []


def test_what_pytest_leaves_out_by_itself_has_a_command() -> None:
    """`addopts` deselects these marks: each is a part's, or by hand."""
    options = re.search(r'"-m", "(not [^"]+)"\]', (ROOT / "pyproject.toml").read_text())
    assert options
    deselected = {each.removeprefix("not ") for each in options[1].split(" and ")}
    assert deselected == {
        "e2e",
        "frameworks",
        *(each.mark for each in TABLE.by_hand),
        *(each.mark for each in TABLE.shards if each.mark),
    }


def test_every_entry_names_a_test_once(collected: dict[str, list[str]]) -> None:
    entries = [entry for entry, _ in TABLE.entries()]
    assert sorted(entries) == sorted(set(entries))
    tests = [*collected, *TORCH_FILES]
    nothing = [entry for entry in entries if not any(shards.names(entry, test) for test in tests)]
    # A file that this interpreter cannot import: its functions are in its text.
    for entry in nothing:
        file, _, function = entry.partition("::")
        assert file in TORCH_FILES and f"def {function.split('[')[0]}(" in (ROOT / file).read_text(), entry
    # An entry that changes nothing misleads: without it the part would be the same.
    idle = [
        entry
        for entry, part in TABLE.entries()
        if part == CORE
        and not any(s != entry and shards.names(s, entry.rstrip("*")) for each in TABLE.shards for s in each.tests)
    ]
    assert idle == []


def test_what_forces_a_shard_exists() -> None:
    assert [path for each in TABLE.shards for path in each.forced_by if not (ROOT / path).exists()] == []


def test_each_product_file_forces_a_shard() -> None:
    product = ("operator", "deviceplugin", "remoting", "offload/remotegpu_offload", "charts", "crds", "Dockerfile")
    files = shards.git("ls-files", *product).splitlines()
    assert len(files) > 1000
    assert [file for file in files if not any(TABLE.forced(shard, [file]) for shard in TABLE.in_turn())] == []


def test_passes_are_of_commits_that_the_history_has() -> None:
    if shards.git("rev-parse", "--is-shallow-repository") == "false":
        for name, last in shards.load_passes(TABLE).items():
            assert shards.git("cat-file", "-t", last.commit) == "commit", name


def test_pytest_takes_the_parts_from_the_table() -> None:
    every = listed("tests/remoting/test_faults.py", "tests/cli/test_run.py", "tests/webhook/test_pods.py")
    files = {test.split("::")[0] for test in every}
    for part in (CORE, API, "survival"):
        asked = set(listed("--part", part, *files))
        assert asked == {test for test, marks in every.items() if TABLE.part_of(test, marks) == part} != set()


@pytest.mark.parametrize("shard", TABLE.shards, ids=lambda shard: shard.name)
def test_a_shard_has_a_command_of_its_own(shard: Shard) -> None:
    ran = commands(f"shard-{shard.name}")
    marks = "-q -m frameworks " if shard.name in TORCH else f"-m {shard.mark} " if shard.mark else ""
    assert f"-m pytest {marks}--part {shard.name}" in ran


def test_make_test_runs_core_make_test_longer_the_rest_and_make_test_all_everything() -> None:
    core = commands("test")
    assert "-m pytest --part core -n 2 " in core and "cargo test" in core and "clippy" in core
    assert not any(other in core for other in ("frameworks", "--part api", "cluster programs", "e2e"))
    longer = commands("test-longer")
    assert "-m pytest --part api -n 2 " in longer and "cluster programs" in longer and "remoting/fuzz" in longer
    in_process = re.findall(r"for files in (.+); do", longer)
    files = {f"offload/tests/torch/test_{name}.py" for group in shlex.split(in_process[0]) for name in group.split()}
    assert files == {entry.partition("::")[0] for entry in TABLE.core} & set(TORCH_FILES)
    # Files of one test each, which the shard has: the demo takes over a minute, the other is about files.
    assert set(TORCH_FILES) - files == {f"offload/tests/torch/test_{name}.py" for name in ("demo", "parquet")}
    assert "-m pytest -m e2e e2e --part core --part" in commands("test-e2e")
    every = commands("test-all")
    for options in ("", " -m e2e e2e", " -m frameworks tests/frameworks_torch", " -m thorough"):
        assert f"-m pytest{options}\n" in every
    assert "for file in offload/tests/torch/test_*.py" in every
    for each in TABLE.by_hand:
        own = [line for line in commands(each.target).splitlines() if f"-m {each.mark}" in line]
        assert own
        assert each.mark == "gpu" or all(line in every for line in own)
    for shard in TABLE.shards:
        assert not shard.by_hand or f"--part {shard.name} " in every


def test_what_is_alike_up_to_its_last_hyphen_stays_in_one_process(tmp_path: Path) -> None:
    """A library's cases in its shard have such names."""
    (tmp_path / "test_groups.py").write_text(
        "import os, pathlib, pytest\n"
        "@pytest.mark.parametrize('name', [f'{group}-{n}' for n in range(4) for group in 'abc'])\n"
        "def test(name):\n"
        "    pathlib.Path(name).write_text(os.environ['PYTEST_XDIST_WORKER'])\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "support.plugin", "-n", "2", "--dist", "loadgroup"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
    subprocess.run([*command, "test_groups.py"], cwd=tmp_path, env=environment, check=True, capture_output=True)
    workers = {group: {(tmp_path / f"{group}-{n}").read_text() for n in range(4)} for group in "abc"}
    assert {len(each) for each in workers.values()} == {1}
    assert len(set.union(*workers.values())) == 2


def test_the_parts_of_ci_keep_their_time() -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| (\d+) \| (\d+) \|$", page[page.index("## Where the time goes") :], re.MULTILINE)
    seconds = {part: (int(most), int(last)) for part, most, last in rows}
    parts = re.findall(r"^test(?:-longer)?: PARTS := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    beside = "test-e2e, beside the others"
    assert set(seconds) == {"demos and builds", beside, *" ".join(parts).split()}
    assert sum(most for part, (most, _) in seconds.items() if part != beside) <= 90 * 60
    assert [part for part, (most, last) in seconds.items() if last > most] == []


def test_ci_runs_all_three() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert "make test || status" in script and "make test-longer || status" in script
    assert "make test-e2e >" in script and "--left-out" in script


SHARDS = (
    Shard("one", "", ("a",), ("src/one",)),
    Shard("two", "", ("b",), ("src/two", "one.py")),
    Shard("three", "", ("c",), ()),
    Shard("four", "", ("d",), ("src/four",), by_hand="it is large"),
)
CORES = ("a/x.py::test", "a/x.py::kind[1]", "b/y.py::test[fast-*")
SMALL = Table(SHARDS, CORES, ("e",), (ByHand("gpu", "test-gpu", ""),))


@pytest.mark.parametrize(
    ("test", "part"),
    [
        ("a/x.py::test", CORE),
        ("a/x.py::test[1]", CORE),
        ("a/x.py::tests", "one"),
        ("a/x.py::kind[1]", CORE),
        ("a/x.py::kind[11]", "one"),
        ("ab/x.py::test", CORE),
        ("b/y.py::Class::test", "two"),
        ("b/y.py::test[fast-1]", CORE),
        ("b/y.py::test[1-fast]", "two"),
        ("e/z.py::test", API),
    ],
)
def test_the_longest_entry_decides(test: str, part: str) -> None:
    assert SMALL.part_of(test) == part


PASSES = {"one": Pass("c1", "2026-11-03"), "two": Pass("c2", "2026-11-02"), "three": Pass("c3", "2026-11-01")}


def chosen(passes: dict[str, Pass], *due: str, asked: str = "") -> str | None:
    turn = shards.choose(SMALL, passes, [SMALL.find(name) for name in due], asked)
    return turn.shard.name if turn.shard else None


def test_of_the_shards_that_are_due_the_one_that_passed_longest_ago_has_its_turn() -> None:
    assert chosen(PASSES, "one", "two") == "two"
    assert chosen(PASSES, "one") == "one"
    assert chosen(PASSES) == "three"
    assert chosen(PASSES, "one", "four") == "one", "by hand"


def test_a_shard_without_a_known_pass_comes_first() -> None:
    assert chosen({"two": PASSES["two"]}, "one", "two") == "one"
    assert chosen({"one": PASSES["one"]}, "one", "two", "three") == "two"


def test_a_shard_that_is_asked_for_has_its_turn() -> None:
    asked = ("2", "three", "4", "four", "none")
    assert [chosen(PASSES, asked=each) for each in asked] == ["two", "three", "four", "four", None]
    with pytest.raises(ShardError, match="5"):
        chosen(PASSES, asked="5")


def test_a_shard_by_hand_says_why_where_it_is_left_out() -> None:
    printed = subprocess.run(
        [sys.executable, ROOT / "tools" / "shard.py", "--left-out"], cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests"), "REMOTEGPU_SHARD": "none"},
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    for shard in TABLE.shards:
        (line,) = [line for line in printed if f", {shard.name}: " in line]
        assert line.endswith(f"(only by `make shard-{shard.name}`: {shard.by_hand})") == bool(shard.by_hand)


class Repository:
    """A git repository of the test's own; commits are made at the given hour."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self("init", "--quiet", "--initial-branch=main")

    def __call__(self, *arguments: str, hour: int = 0) -> str:
        when = f"{1_700_000_000 + hour * 3600} +0000"
        names = {f"GIT_{who}_{what}": "t" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        dates = {"GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when}
        return shards.git(*arguments, root=self.root, environment=names | dates)

    def commit(self, file: str, hour: int) -> str:
        (self.root / file).write_text(str(hour))
        self("add", file)
        self("commit", "--quiet", "--message", file, hour=hour)
        return self("rev-parse", "HEAD")


def test_a_shard_is_due_once_what_it_guards_has_changed(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    (tmp_path / "src").mkdir()
    first = repository.commit("src/one", hour=0)
    second = repository.commit("one.py", hour=1)
    passes = {"one": Pass(first, "2026-11-01"), "two": Pass(first, "2026-11-01"), "three": Pass(first, "2026-11-01")}

    def names_due() -> list[str]:
        return [each.name for each in shards.due(SMALL, passes, shards.tree_hash(tmp_path), tmp_path)]

    assert names_due() == ["two", "four"], "one.py is two's, and four never passed"
    passes["two"] = Pass(second, "2026-11-02")
    assert names_due() == ["four"]
    passes["two"] = Pass("0" * 40, "2026-11-02")
    assert names_due() == ["two", "four"], "this clone does not have the commit"


def test_the_tree_s_hash_is_the_commit_s_and_changes_with_what_is_not_committed(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    repository.commit("a", hour=0)
    clean = shards.tree_hash(tmp_path)
    assert clean == repository("rev-parse", "HEAD^{tree}")
    (tmp_path / "b").write_text("")
    assert shards.tree_hash(tmp_path) not in {clean, ""}
    assert repository("status", "--porcelain") == "?? b", "the index is as it was"
