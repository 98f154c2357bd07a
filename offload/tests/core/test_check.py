"""`remotegpu offload check`: what it says of each rule, against modules that are made here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

MODULE = """
from functools import wraps
from os.path import join  # not its own

print("imported")

def train_epoch(model, batch, *, lr=0.1): ...
def score(model): ...
async def serve(model):
    yield model
class Net:
    def fit(self, samples): ...
    def predict(self, samples, probabilities=False): ...
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    package = tmp_path / "mypkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(MODULE)
    (package / "broken.py").write_text("import not_installed_here\n")
    (package / "failing.py").write_text("raise RuntimeError('no device')\n")
    return tmp_path


def check(folder: Path, config: str, *arguments: str, **environ: str) -> tuple[int, dict[str, Any]]:
    (folder / "remotegpu.yaml").write_text("version: 1\n" + config)
    command = [str(Path(sys.executable).parent / "remotegpu"), "offload", "check", "--json", "--python", sys.executable]
    # The variables of CI itself are nobody's business.
    variables = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ} | environ
    done = subprocess.run(
        [*command, *arguments], cwd=folder, env=variables, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def said(report: dict[str, Any]) -> dict[str, tuple[str, int, str]]:
    return {found["subject"]: (found["level"], found["line"], found["text"]) for found in report["findings"]}


def test_rules_that_work_say_what_will_happen(project: Path) -> None:
    code, report = check(
        project,
        """offload:
  - function: mypkg.train.train_epoch
    args: {model: ref, "*": value}
    mutates: [batch]
  - class: mypkg.train.Net
    args: {samples: auto}
  - function: math.sqrt
  - function: __main__.main
code: {page: [mypkg]}
""",
    )
    found = said(report)
    assert found["function mypkg.train.train_epoch"] == (
        "OK",
        3,
        "runs there; model by ref, others by value, batch written back; its source travels",
    )
    assert found["class mypkg.train.Net"] == (
        "OK",
        6,
        "instances live there; methods are calls; samples by auto; its source travels",
    )
    assert found["function math.sqrt"][2] == "runs there; math must be installed at the acceptor"
    assert found["function __main__.main"][:2] == ("NOTE", 9)
    assert found["code.page mypkg"] == ("OK", 0, "4 files of source may travel")
    assert (code, report["good"]) == (0, True)


def test_the_check_notes_that_a_rule_for_a_torch_module_has_no_gradients(project: Path) -> None:
    home = project / "torch" / "nn" / "modules"
    home.mkdir(parents=True)
    for folder in (home, home.parent, home.parent.parent):
        (folder / "__init__.py").write_text("")
    (home / "module.py").write_text("class Module: ...\n")
    (project / "mypkg" / "nets.py").write_text("from torch.nn.modules.module import Module\nclass Big(Module): ...\n")
    code, report = check(project, "offload: [{class: mypkg.nets.Big}]")
    level, _, text = said(report)["class mypkg.nets.Big"]
    assert (level, code) == ("NOTE", 0) and "gradients do not come back" in text and "a torch rule" in text


def test_a_glob_means_the_module_s_own_functions(project: Path) -> None:
    _, report = check(project, "offload: [{function: mypkg.train.*}]")
    names = set(said(report))
    assert {"function mypkg.train.train_epoch", "function mypkg.train.score"} <= names
    assert not any("join" in name or "wraps" in name or "Net" in name for name in names)


@pytest.mark.parametrize(
    ("rule", "names"),
    [
        ("function: mypkg.train.train_epok", r"\bmypkg\.train\b.*'train_epok'.*'train_epoch'"),
        ("function: mypk.train.train_epoch", r"'mypk'.*'mypkg'"),
        ("function: mypkg.train.x*", r"\bmypkg\.train\b.*\bscore, serve, train_epoch\b"),
        ("function: mypkg.train.Net", r"`class: mypkg\.train\.Net`"),
        ("class: mypkg.train.score", r"`function: mypkg\.train\.score`"),
        ("class: builtins.bool", r"."),
        ("function: mypkg.broken.f", r"\bmypkg\.broken\b.*'not_installed_here'"),
        ("function: mypkg.failing.f", r"\bmypkg\.failing\b.*\bRuntimeError: no device\b"),
        ("{function: mypkg.train.score, args: {modle: ref}}", r"'modle'.*'model'"),
        ("{class: mypkg.train.Net, mutates: [sample]}", r"'sample'.*'samples'"),
    ],
)
def test_rules_that_cannot_work_fail_with_the_way_out(project: Path, rule: str, names: str) -> None:
    code, report = check(project, f"offload:\n  - {rule}\n")
    [(level, line, told)] = [line for subject, line in said(report).items() if subject.startswith(("func", "class"))]
    assert (level, line, code) == ("FAIL", 3, 2)
    assert re.search(names, told), told


def test_a_module_needs_a_stub_profile(project: Path) -> None:
    code, report = check(project, "offload: [{module: sklearn}, {module: numpy}]")
    found = said(report)
    assert found["module sklearn"][0] == "OK"
    assert found["module numpy"][0] == "FAIL" and "'numpy'" in found["module numpy"][2]
    assert code == 2


def test_a_module_with_a_profile_must_be_here_with_its_names(project: Path) -> None:
    fake = project / "sklearn"
    fake.mkdir()
    (fake / "__init__.py").write_text("")
    (fake / "svm.py").write_text("class SVC: ...\nclass SVR: ...\n")
    code, report = check(project, "offload: [{module: sklearn}]")
    level, _, text = said(report)["module sklearn"]
    assert (level, code) == ("NOTE", 0) and text.startswith("2 of its classes") and "here lacks sklearn." in text
    code, report = check(project, "offload: [{module: not_installed_here, profile: sklearn}]")
    level, _, text = said(report)["module not_installed_here"]
    assert (level, code) == ("FAIL", 2) and "has no not_installed_here: install it there" in text


def test_the_check_names_source_that_may_not_be_sent(project: Path) -> None:
    _, report = check(project, "offload: [{function: mypkg.train.score}]\ncode: {page: [mypkg], never: [mypkg.train]}")
    assert "its source stays here" in said(report)["function mypkg.train.score"][2]


def test_what_may_cross_is_counted_and_secrets_are_named(project: Path) -> None:
    data = project / "data"
    (data / "deep").mkdir(parents=True)
    (data / "a.csv").write_bytes(b"x" * 1024)
    (data / "deep" / "b.csv").write_bytes(b"x" * 1024)
    (project / "keys").mkdir()
    (project / "keys" / "server.pem").write_text("")
    code, report = check(
        project,
        """offload: []
code: {page: [./absent, numpyy], never: [mypkg.train]}
files: {read: [./data/**, ./keys/*, ./nowhere/**], write: [./out/**]}
env: {pass: [MYAPP_*, APP_*, NOBODY]}
trust: full
""",
        MYAPP_MODE="fast",
        APP_TOKEN="x",
    )
    found = {subject: (level, text) for subject, (level, _, text) in said(report).items()}
    assert found["files.read ./data/**"] == ("OK", "2 files, 2.0 KiB, may be read")
    assert (
        found["files.read ./keys/*"][0] == "NOTE"
        and "server.pem, which looks like a secret" in found["files.read ./keys/*"][1]
    )
    assert found["files.read ./nowhere/**"][0] == "FAIL"
    assert found["files.write ./out/**"][0] == "NOTE"
    assert found["env.pass MYAPP_*"] == ("OK", "MYAPP_MODE crosses")
    assert found["env.pass APP_*"] == ("NOTE", "APP_TOKEN crosses, which looks like a secret")
    assert found["env.pass NOBODY"][0] == "NOTE"
    assert found["code.page ./absent"][0] == found["code.page numpyy"][0] == "FAIL"
    assert found["code.never mypkg.train"] == ("OK", "its source never travels")
    assert found["trust"][0] == "NOTE"
    assert code == 2


def test_every_mistake_of_the_file_has_its_line(project: Path) -> None:
    code, report = check(project, "trusts: full\noffload: [{functoin: a.b}]")
    assert [(found["level"], found["line"]) for found in report["findings"]] == [("FAIL", 2), ("FAIL", 3)]
    assert code == 2


def test_it_is_the_user_s_interpreter_that_is_asked_even_one_without_any_package(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    python = str(tmp_path / "bare" / "bin" / "python")
    code, report = check(tmp_path, "offload: [{torch: {}}, {function: yaml.dump}]", "--python", python)
    found = said(report)
    assert found["torch cuda"][0] == "FAIL" and "has no torch: install it there" in found["torch cuda"][2]
    assert "there is no module 'yaml' in this interpreter" in found["function yaml.dump"][2]
    assert (code, report["python"]) == (2, python)


def test_without_a_file_torch_mode_is_used_which_needs_torch_only_when_it_runs(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).parent / "remotegpu"), "offload", "check", "--python", sys.executable]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False)
    assert done.stdout.startswith(f"no remotegpu.yaml, for {sys.executable}\n")
    assert "torch cuda: " in done.stdout and done.returncode == 0
