"""Reading remotegpu.yaml: what it means, and the messages about what it cannot mean."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remotegpu.api.names import CONFIG_ENV
from remotegpu_offload.config import (
    ClassRule,
    Config,
    ConfigError,
    EnvRules,
    FunctionRule,
    ModuleRule,
    Problem,
    TorchRule,
    dump,
    find,
    load,
    parse,
)

EVERYTHING = """
version: 1
session: {backends: [rocm, cpu], environment: torch215, fraction: 0.25, on_disconnect: resume 1m30s, snapshots: 30s, skew: allow}
offload:
  - torch: {devices: [cuda, mps]}
  - function: mypkg.train.train_epoch
    args: {model: ref, "*": value}
    mutates: [batch]
    returns: ref
  - class: sklearn.ensemble.RandomForestClassifier
    mutates: auto
  - module: onnxruntime
    profile: mine
code:  {page: [mypkg, ./src], never: [mypkg.secrets], prefer: client}
files: {read: ["./data/**"], write: [./out/**], cache: 2GiB}
env:   {pass: [OMP_NUM_THREADS, "MYAPP_*"]}
trust: full
"""  # noqa: E501


def problems(text: str) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    return caught.value.problems


def test_every_option_is_read(tmp_path: Path) -> None:
    config = parse(EVERYTHING, folder=tmp_path)
    assert (config.session.backends, config.session.environment) == (("rocm", "cpu"), "torch215")
    assert (config.session.milli, config.session.memory_bytes) == (250, None)
    assert (config.session.resume_seconds, config.session.snapshot_seconds, config.session.skew) == (90, 30, "allow")
    assert config.torch == TorchRule(("cuda", "mps"), line=5)
    assert config.functions == (
        FunctionRule("mypkg.train.train_epoch", {"model": "ref", "*": "value"}, ("batch",), "ref", line=6),
    )
    assert config.classes == (ClassRule("sklearn.ensemble.RandomForestClassifier", mutates="auto", line=10),)
    assert config.modules == (ModuleRule("onnxruntime", "mine", line=12),)
    assert (config.code.page, config.code.never, config.code.prefer) == (
        ("mypkg", "./src"),
        ("mypkg.secrets",),
        "client",
    )
    assert (config.files.read, config.files.write, config.files.cache_bytes) == (("./data/**",), ("./out/**",), 2 << 30)
    assert (config.env.passes, config.trust, config.folder) == (("OMP_NUM_THREADS", "MYAPP_*"), "full", tmp_path)


def test_without_a_file_cuda_tensors_are_remote_and_nothing_else_crosses(tmp_path: Path) -> None:
    config = load(None, {}, tmp_path)
    assert config == Config(folder=tmp_path)
    assert config.rules == (TorchRule(("cuda",)),)
    assert config.files.read == config.files.write == config.env.passes == ()
    assert config.trust == "restricted"


def test_the_least_file_means_the_same_as_none(tmp_path: Path) -> None:
    assert parse("version: 1", folder=tmp_path) == Config(folder=tmp_path)
    assert parse("version: 1\nenv:\nfiles:\nsession:\n", folder=tmp_path) == Config(folder=tmp_path)


def test_an_empty_list_of_rules_offloads_nothing() -> None:
    assert parse("version: 1\noffload: []").torch is None


def test_torch_rules_add_up_and_default_to_cuda() -> None:
    config = parse("version: 1\noffload:\n- torch:\n- torch: {devices: [xpu, cuda]}")
    assert config.torch == TorchRule(("cuda", "xpu"), line=3)


def test_lookup_prefers_the_option_then_the_variable_then_the_folder(tmp_path: Path) -> None:
    here = tmp_path / "remotegpu.yaml"
    here.write_text("version: 1")
    assert find("given.yaml", {CONFIG_ENV: "named.yaml"}, tmp_path) == Path("given.yaml")
    assert find(None, {CONFIG_ENV: "named.yaml"}, tmp_path) == Path("named.yaml")
    assert find(None, {}, tmp_path) == here
    assert find(None, {CONFIG_ENV: ""}, tmp_path / "elsewhere") is None
    assert load(None, {}, tmp_path).source == here
    assert load(here, {}, Path("/")).folder == tmp_path


@pytest.mark.parametrize(
    ("text", "line", "where", "names"),
    [
        ("version: 2", 1, "version", ("'2'", "1")),
        ("session: {}", 1, "", ("`version`",)),
        ("version: 1\nsesion: {}", 2, "sesion", ("'session'",)),
        ("version: 1\nqqqqqq: 1", 2, "qqqqqq", ("code, env, files, offload, session, trust, version",)),
        ("version: 1\nversion: 1", 2, "version", ()),
        ("version: 1\nsession: {backends: [cudaa]}", 2, "session.backends[0]", ("'cudaa'", "'cuda'")),
        ("version: 1\nsession: {backends: [cpu, cpu]}", 2, "session.backends[1]", ("'cpu'",)),
        ("version: 1\nsession: {backends: cpu}", 2, "session.backends", ("'cpu'",)),
        ("version: 1\nsession: {fraction: 2}", 2, "session.fraction", ("2",)),
        ("version: 1\nsession: {fraction: lots}", 2, "session.fraction", ("'lots'",)),
        ("version: 1\nsession: {memory: 4 apples}", 2, "session.memory", ("'4 apples'", "4GiB")),
        ("version: 1\nsession: {fraction: 0.5, memory: 4GiB}", 2, "session", ("fraction", "memory")),
        ("version: 1\nsession: {on_disconnect: wait}", 2, "session.on_disconnect", ("'wait'", "`fail`", "`resume`")),
        (
            "version: 1\nsession: {on_disconnect: resume soon, snapshots: 1s}",
            2,
            "session.on_disconnect",
            ("'soon'", "90s"),
        ),
        ("version: 1\nsession:\n  on_disconnect: resume 60s", 3, "session.on_disconnect", ("`snapshots: ",)),
        ("version: 1\nsession: {snapshots: 0s}", 2, "session.snapshots", ("0s", "never")),
        ("version: 1\noffload: {torch: {}}", 2, "offload", ("mapping",)),
        ("version: 1\noffload:\n- torch: {}\n- torhc: {}", 4, "offload[1]", ("'torhc'", "'torch'")),
        ("version: 1\noffload:\n- train", 3, "offload[0]", ("class, function, module, torch",)),
        ("version: 1\noffload:\n- {function: a.b, class: c.d}", 3, "offload[0]", ("function", "class")),
        ("version: 1\noffload:\n- torch: {devices: []}", 3, "offload[0].torch.devices", ()),
        (
            "version: 1\noffload:\n- torch: {devices: [graphcore]}",
            3,
            "offload[0].torch.devices[0]",
            ("'graphcore'", "cuda, mps, xpu"),
        ),
        ("version: 1\noffload:\n- function: train", 3, "offload[0].function", ("'train'",)),
        ("version: 1\noffload:\n- function: '*.train'", 3, "offload[0].function", ("'*.train'",)),
        ("version: 1\noffload:\n- function: a.b\n  mutate: [x]", 4, "offload[0].mutate", ("'mutates'",)),
        ("version: 1\noffload:\n- function: a.b\n  args: {x: reff}", 4, "offload[0].args.x", ("'reff'", "'ref'")),
        ("version: 1\noffload:\n- function: a.b\n  mutates: all", 4, "offload[0].mutates", ("'all'", "auto, none")),
        ("version: 1\noffload:\n- module: my-module", 3, "offload[0].module", ("'my-module'",)),
        ("version: 1\ncode: {page: [my-pkg]}", 2, "code.page[0]", ("'my-pkg'",)),
        ("version: 1\ncode: {page: [~]}", 2, "code.page[0]", ()),
        ("version: 1\nfiles: {read: ['']}", 2, "files.read[0]", ("./data/**",)),
        ("version: 1\nenv: {pass: [A-B]}", 2, "env.pass[0]", ("'A-B'", "MYAPP_*")),
        ("version: 1\ntrust: nobody", 2, "trust", ("'nobody'", "full, restricted")),
        ("- version: 1", 1, "", ("mapping", "list")),
        ("", 1, "", ("`version: 1`",)),
        ("version: [1", 1, "", ("YAML",)),
        ("version: !!python/object/apply:os.system [id]", 1, "version", ("list",)),
        ("version: 1\n? [a]\n: 1", 2, "?", ("code",)),
    ],
)
def test_what_cannot_be_is_refused_with_its_line_and_the_way_out(
    text: str, line: int, where: str, names: tuple[str, ...]
) -> None:
    (problem,) = problems(text)
    assert (problem.line, problem.where) == (line, where)
    # The value at fault, and what could stand there instead.
    assert all(name in problem.message for name in names), problem


def test_all_problems_are_told_in_order_and_the_message_is_one_line() -> None:
    with pytest.raises(ConfigError) as caught:
        parse("version: 1\ntrust: x\nenv: 1\ncodes: {}", source=Path("/a/remotegpu.yaml"))
    assert [problem.line for problem in caught.value.problems] == [2, 3, 4]
    assert str(caught.value).startswith(f"/a/remotegpu.yaml:{caught.value.problems[0]}")
    assert re.search(r"\b2\b.*`remotegpu offload check`", str(caught.value))
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read_say_which_and_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=os.strerror(errno.ENOENT)):
        load(tmp_path / "absent.yaml")
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (1 << 20) + b"\nversion: 1")
    with pytest.raises(ConfigError, match=r"large\.yaml:1: "):
        load(large)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\x80\x81" * 10)
    with pytest.raises(ConfigError, match=r"binary\.yaml:1: "):
        load(binary)


@pytest.mark.parametrize(
    "bomb",
    [
        "version: 1\nenv: &a {pass: [*a]}",
        "version: 1\noffload: &a [*a, *a]",
        "version: 1\n" + "\n".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 10) if n else 'y'}]" for n in range(30)),
        "version: 1\nenv: " + "[" * 5000,
    ],
    ids=["cycle", "cycle of rules", "laughs", "deep"],
)
def test_hostile_yaml_ends_in_a_problem(bomb: str) -> None:
    assert problems(bomb)


@pytest.mark.parametrize("text", ["version: 1", EVERYTHING, "version: 1\noffload: []\nsession: {memory: 3GiB}"])
def test_what_is_dumped_reads_as_the_same(text: str, tmp_path: Path) -> None:
    config = parse(text, folder=tmp_path)
    again = parse(dump(config), folder=tmp_path)
    assert dump(again) == dump(config)
    assert (again.session, again.code, again.files, again.env) == (
        config.session,
        config.code,
        config.files,
        config.env,
    )
    assert [type(rule) for rule in again.rules] == [type(rule) for rule in config.rules]


@given(st.text(alphabet="{}[]:-,&*!|>'\"# \nabversion1fuctio", max_size=80))
def test_any_text_is_a_config_or_a_config_error(text: str) -> None:
    try:
        assert isinstance(parse(text), Config)
    except ConfigError as error:
        assert error.problems


def test_rules_tell_how_names_and_arguments_are_meant() -> None:
    rule = FunctionRule("mypkg.steps.*", {"model": "ref", "*": "value"})
    assert rule.matches("mypkg.steps.one") and not rule.matches("mypkg.other.one")
    assert [rule.mode(name) for name in ("model", "batch")] == ["ref", "value"]
    assert FunctionRule("a.b").mode("x") == "auto"
    assert EnvRules(("MYAPP_*", "HOME")).crosses("MYAPP_X")
    assert not EnvRules(("MYAPP_*", "HOME")).crosses("HOMES")


WITHOUT_YAML = """
import sys
sys.modules["yaml"] = None
from pathlib import Path
from remotegpu_offload.config import ConfigError, load
try:
    print(load(sys.argv[1], {}, Path.cwd()).trust)
except ConfigError as error:
    print(error)
"""


def test_an_interpreter_without_yaml_reads_what_was_dumped_and_says_what_it_lacks(tmp_path: Path) -> None:
    def read(content: str) -> str:
        file = tmp_path / "config"
        file.write_text(content)
        command = [sys.executable, "-c", WITHOUT_YAML, str(file)]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()

    assert read(dump(parse("version: 1\ntrust: full"))) == "full"
    assert "needs PyYAML, which" in read("version: 1\ntrust: full")
    assert json.loads(dump(Config()))["version"] == 1
