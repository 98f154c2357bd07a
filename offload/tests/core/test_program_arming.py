"""Arming: what the rules name is wrapped when it is imported, and nothing is imported for that."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from offload_programs import PATIENCE, Project, same

import remotegpu_offload
from remotegpu_offload.importing.hooks import when_imported
from remotegpu_offload.importing.libraries import LibraryFinder, library_folders

START = Path(remotegpu_offload.__file__).parent / "sitecustomize"
RULES = "version: 1\noffload:\n  - function: steps.where\n  - function: __main__.main_where\n"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    before, finders = set(sys.modules), list(sys.meta_path)
    yield tmp_path
    sys.meta_path[:] = finders
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_watchers_are_called_after_the_module_ran(modules: Path) -> None:
    (modules / "watched_a.py").write_text("VALUE = 1\nLOADER = __spec__.loader\n")
    told: list[ModuleType] = []
    when_imported("watched_a", told.append)
    assert not told
    import watched_a  # type: ignore[import-not-found]

    assert told == [watched_a]
    assert watched_a.VALUE == 1
    # The module never sees that somebody watched.
    assert type(watched_a.LOADER).__name__ == "SourceFileLoader"
    assert watched_a.__loader__ is watched_a.__spec__.loader is watched_a.LOADER
    # Now at once.
    when_imported(lambda name: name.startswith("watched_"), told.append)
    assert told == [watched_a, watched_a]


def test_two_watchers_are_both_called_and_errors_reach_the_import(modules: Path) -> None:
    (modules / "watched_b.py").write_text("")
    (modules / "watched_c.py").write_text("1 / 0\n")
    told: list[str] = []
    when_imported("watched_b", lambda module: told.append("first"))
    when_imported("watched_b", lambda module: told.append("second"))
    when_imported("watched_c", lambda module: told.append("never"))
    import watched_b  # type: ignore[import-not-found]  # noqa: F401

    assert sorted(told) == ["first", "second"]
    with pytest.raises(ZeroDivisionError):
        __import__("watched_c")
    with pytest.raises(ModuleNotFoundError):
        __import__("watched_nowhere")
    assert len(told) == 2


@pytest.mark.parametrize("arguments", [["main.py"], ["-m", "main"]], ids=" ".join)
def test_functions_that_a_rule_names_run_in_the_acceptor(arguments: list[str], project: Project) -> None:
    project.write(
        "steps.py", "import os\n\ndef where():\n    return os.getpid()\n\ndef here():\n    return os.getpid()\n"
    )
    project.write(
        "main.py",
        "import os\nimport steps\n\n"
        "def main_where():\n    return os.getpid()\n\n"
        "def main_here():\n    return os.getpid()\n\n"
        "if __name__ == '__main__':\n"
        "    print([f() == os.getpid() for f in (steps.where, steps.here, main_where, main_here)])\n"
        "    print(steps.where() == main_where())\n",
    )
    project.write("remotegpu.yaml", RULES)
    remote = project.offloaded(*arguments, split="rules")
    assert remote.stderr == ""
    assert remote.stdout.splitlines()[0] == "[False, True, False, True]"
    assert remote.stdout.splitlines()[-1] == "True"
    # The torch rule alone leaves functions here.
    assert project.offloaded(*arguments, split="torch").stdout.splitlines()[0] == "[True, True, True, True]"


def _start(project: Project, *arguments: str, pythonpath: str = "") -> subprocess.CompletedProcess[str]:
    environment = project.environment() | {"PYTHONPATH": ":".join(filter(None, [str(START), pythonpath]))}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=project.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_in_a_pod_python_arms_itself_and_imports_nothing_for_it(project: Project) -> None:
    project.write("remotegpu.yaml", RULES)
    project.write("steps.py", "import os\n\ndef where():\n    return os.getpid()\n")
    listing = (
        "import json, sys; print(json.dumps(sorted(name for name in sys.modules if name.startswith('remotegpu'))))"
    )
    loaded = json.loads(_start(project, "-c", listing).stdout)
    assert "remotegpu_offload.importing.arm" in loaded
    for name in ("remotegpu_offload.config", "remotegpu_offload.client", "remotegpu_offload.wire"):
        assert not [each for each in loaded if each.startswith(name)], loaded
    for name in ("yaml", "cloudpickle", "socket", "asyncio"):
        assert _start(project, "-c", f"import sys; print({name!r} in sys.modules)").stdout == "False\n"
    ran = _start(project, "-c", "import os, steps; print(steps.where() == os.getpid())")
    assert (ran.stdout, ran.stderr) == ("False\n", "")


def test_the_users_own_sitecustomize_runs_too(project: Project, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "sitecustomize.py").write_text("import sys\nsys.mine = __name__, __file__\n")
    ran = _start(
        project, "-c", "import sys; print(sys.mine, sys.modules['sitecustomize'].__file__)", pythonpath=str(mine)
    )
    file = str(mine / "sitecustomize.py")
    assert ran.stdout == f"{('sitecustomize', file)} {file}\n"
    (mine / "sitecustomize.py").write_text("1 / 0\n")
    failed = _start(project, "-c", "print('runs')", pythonpath=str(mine))
    assert failed.stdout == "runs\n"
    assert "ZeroDivisionError" in failed.stderr


def test_a_wrong_configuration_ends_the_import_that_needs_it(project: Project) -> None:
    project.write("remotegpu.yaml", "version: 1\noffload: [{funktion: a.b}]\n")
    project.write("steps.py", "")
    assert _start(project, "-c", "import json; print('fine')").stdout == "fine\n"
    failed = _start(project, "-c", "import steps")
    assert failed.returncode == 1
    assert "funktion" in failed.stderr.splitlines()[-1]


def test_an_armed_program_without_use_for_it_is_as_ever(project: Project) -> None:
    project.write("remotegpu.yaml", RULES)
    project.write("main.py", "import json, sys\nprint(sys.argv)\n1 / 0\n")
    local = project.local("main.py", "x")
    ran = _start(project, "main.py", "x")
    same(local, ran)


def test_only_two_libraries_are_lent(tmp_path: Path) -> None:
    for name in ("yaml", "cloudpickle", "numpy"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    finder = LibraryFinder([str(tmp_path / "nowhere"), str(tmp_path)])
    spec = finder.find_spec("yaml", None)
    assert spec is not None
    assert spec.origin == str(tmp_path / "yaml/__init__.py")
    assert finder.find_spec("numpy", None) is None
    assert finder.find_spec("yaml.cyaml", None) is None
    assert all(
        (Path(folder) / "yaml").is_dir() or (Path(folder) / "cloudpickle").is_dir()
        for folder in library_folders().split(":")
    )


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("function: steps.wher", "steps has no 'wher'; did you mean 'where'?"),
        ("function: steps.Thing", "it is a class: write `class: steps.Thing`"),
        ("class: steps.where", "it is a function: write `function: steps.where`"),
        ("function: __main__.main_wher", "the script has no 'main_wher'; did you mean 'main_where'?"),
    ],
)
def test_a_rule_that_names_nothing_is_reported_and_the_program_runs_locally(
    project: Project, rule: str, words: str
) -> None:
    project.write("remotegpu.yaml", f"version: 1\noffload:\n  - {rule}\n")
    project.write("steps.py", "import os\nclass Thing: pass\ndef where(): return os.getpid()\n")
    project.write("main.py", "import os, steps\ndef main_where(): pass\nprint(steps.where() == os.getpid())\n")
    done = project.offloaded("main.py", split="rules")
    assert (done.returncode, done.stdout) == (0, "True\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        f"remotegpu: {project.folder}/remotegpu.yaml:3: {rule.replace(': ', ' ')} does nothing: {words}"
    )


def test_globs_packages_and_lazy_modules_are_not_guessed_about(project: Project) -> None:
    rules = ["lazy.late", "pkg.below", "pkg.below.f", "pkg.*", "unused.f"]
    project.write("remotegpu.yaml", f"version: 1\noffload: [{', '.join(f'{{function: {rule}}}' for rule in rules)}]\n")
    project.write("lazy.py", "def __getattr__(name): return name\n")
    project.write("pkg/__init__.py", "")
    project.write("pkg/below.py", "def f(): return 1\n")
    project.write("main.py", "import lazy, pkg, pkg.below\nprint(lazy.some)\n")
    done = project.offloaded("main.py", split="rules")
    assert (done.returncode, done.stdout, done.stderr) == (0, "some\n", "")


def test_what_goes_wrong_shows_the_programs_lines_and_not_ours(project: Project) -> None:
    """A sentence of ours, an error from there, a module that is not sent."""
    project.write("remotegpu.yaml", "version: 1\noffload: [{function: steps.*}]\ncode: {never: [hidden]}\n")
    project.write("hidden.py", "")
    project.write("steps.py", "def take(x): import hidden\ndef fail(): return 1 / 0\n")
    lines = {
        "steps.take(__import__('threading').Lock())": "CrossingError",
        "steps.fail()": "ZeroDivisionError",
        "steps.take(1)": "remotegpu: hidden is neither installed in the acceptor's environment nor served",
    }
    for line, words in lines.items():
        project.write("main.py", f"import steps\n{line}\n")
        done = project.offloaded("main.py", split="rules")
        assert done.returncode == 1 and words in done.stderr, done.stderr
        shown = [line for line in done.stderr.splitlines() if line.startswith("  File ")]
        assert shown and not any("/remotegpu_offload/" in frame for frame in shown), done.stderr
