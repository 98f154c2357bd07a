"""Unmodified programs under rules for functions, classes and modules: the same output as without."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from offload_programs import Project, same

from remotegpu_offload.config.errors import ConfigError
from remotegpu_offload.config.model import ClassRule, Config, FunctionRule, ModuleRule
from remotegpu_offload.functions import profiles


@pytest.mark.parametrize("name", ["rules", "estimators"])
def test_programs_say_the_same(tmp_path: Path, name: str) -> None:
    project = Project(tmp_path, name)
    local = project.local("main.py")
    assert local.returncode == 0, local.stderr
    same(local, project.offloaded("main.py", split="rules"))


def test_every_name_of_a_profile_exists() -> None:
    for rule in profiles.expand(ModuleRule("sklearn")):
        module, _, attribute = rule.pattern.rpartition(".")
        value = getattr(importlib.import_module(module), attribute)
        assert isinstance(value, type) is isinstance(rule, ClassRule)


def test_every_profile_stands_for_rules_of_its_own_library() -> None:
    assert profiles.names() == ["sklearn"]
    for name in profiles.names():
        found = profiles.expand(ModuleRule(name))
        assert len(found) == len({rule.pattern for rule in found}) > 0
        for rule in found:
            assert rule.pattern.startswith(f"{name}.")


def test_a_profile_of_the_release_before_says_what_to_write_instead() -> None:
    with pytest.raises(ConfigError, match=r"'onnxruntime' was removed: write a `function` rule"):
        profiles.expand(ModuleRule("onnxruntime"))


def test_results_may_hold_instances_of_classes_that_are_named() -> None:
    config = Config(rules=(FunctionRule("a.b"), ModuleRule("sklearn"), ClassRule("c.d.E")))
    assert profiles.packages(config) == {"a", "sklearn", "c"}


def test_what_a_rule_names_runs_in_the_acceptor(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("remotegpu.yaml", "version: 1\noffload: [{function: '__main__.pid'}, {class: mine.Home}]\n")
    project.write("mine.py", "import os\nclass Home:\n    def pid(self):\n        return os.getpid()\n")
    project.write(
        "main.py",
        "import os\nfrom mine import Home\ndef pid():\n    return os.getpid()\n"
        "print(len({os.getpid(), pid(), Home().pid()}), pid() == Home().pid())\n",
    )
    assert project.local("main.py").stdout == "1 True\n"
    assert project.offloaded("main.py", split="rules").stdout == "2 True\n"


def test_a_profile_replaces_its_module() -> None:
    config = Config(rules=(FunctionRule("a.b"), ModuleRule("sklearn", line=4), ClassRule("c.D")))
    found = profiles.rules(config)
    assert found[0] == FunctionRule("a.b") and found[-1] == ClassRule("c.D") and len(found) > 30
    assert ClassRule("sklearn.svm.SVC", line=4) in found
    assert profiles.rules(Config(rules=(ModuleRule("my_sklearn", "sklearn"),)))


def test_a_module_without_a_profile_is_refused_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"3: module tensorflow: .*\bsklearn\b"):
        profiles.rules(Config(rules=(ModuleRule("tensorflow", line=3),)))
