"""`remotegpu offload explain`: calls, sizes and suggestions of ordinary programs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from offload_explain import explain
from offload_programs import Project, same
from support.system import REMOTEGPU

from remotegpu_offload.explain import changes
from remotegpu_offload.explain.calls import Calls, Profile
from remotegpu_offload.explain.changes import written
from remotegpu_offload.explain.suggest import CALL_SECONDS, crossing_seconds, served_by_torch, suggest


def by_name(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {line["name"]: line for line in report["functions"]}


PROGRAM = """
import sys, threading
import helper

def heavy(rows, *, scale=1):
    return helper.work(rows) * scale

def tiny(x):
    return x

def locked(lock):
    with lock:
        return helper.work(b"")

class Model:
    def fit(self, rows):
        return heavy(rows)

def main():
    for _ in range(3):
        heavy(bytes(1_000_000))
    for _ in range(100):
        tiny(1)
    Model().fit(b"")
    locked(threading.Lock())
    print("said", sys.argv[1:], __name__)

main()
"""


def test_calls_and_bytes_are_counted_exactly(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("def work(rows):\n    return sum(i * i for i in range(300_000)) + len(rows)\n")
    done, report = explain(tmp_path, PROGRAM, "--epochs", "2")
    assert done.stdout.startswith("said ['--epochs', '2'] __main__\n"), "it runs as it would alone"
    found = by_name(report)
    assert found["__main__.heavy"]["calls"] == 4 and found["helper.work"]["calls"] == 5
    assert found["__main__.tiny"]["calls"] == 100
    # The argument, and `scale`, each pickled alone.
    assert found["__main__.heavy"]["argument_bytes"] == len(pickle_bytes(bytes(1_000_000))) + len(pickle_bytes(1))
    assert found["__main__.heavy"]["result_bytes"] < 100
    assert found["__main__.Model.fit"]["argument_bytes"] == len(pickle_bytes(b"")), "self would live there"
    assert found["__main__.locked"]["obstacle"].startswith("its argument lock cannot be pickled")
    assert found["__main__.heavy"]["pays"] and not found["__main__.tiny"]["pays"]
    assert not found["__main__.locked"]["pays"]
    assert report["exit_code"] == done.returncode == 0


def pickle_bytes(value: object) -> bytes:
    import cloudpickle

    return bytes(cloudpickle.dumps(value, protocol=5))


def test_the_program_s_end_is_ours(tmp_path: Path) -> None:
    done, report = explain(tmp_path, "import sys\nsys.exit(7)")
    assert done.returncode == report["exit_code"] == 7
    done, report = explain(tmp_path, "def f():\n    raise ValueError('bad')\nf()")
    assert done.returncode == report["exit_code"] == 1
    assert "ValueError: bad" in done.stderr and "line 2, in f" in done.stderr
    done, report = explain(tmp_path, "import os\nos._exit(9)")
    assert done.returncode == 70 and done.stderr.startswith("remotegpu: "), done.stderr


def test_functions_of_libraries_count_where_the_program_calls_them(tmp_path: Path) -> None:
    program = """
import numpy as np
from sklearn.ensemble import RandomForestClassifier
def main():
    rows = np.random.default_rng(0).random((300, 10))
    RandomForestClassifier(10, random_state=0).fit(rows, rows[:, 0] > 0.5)
main()
"""
    _, report = explain(tmp_path, program)
    fit = by_name(report)["sklearn.ensemble._forest.RandomForestClassifier.fit"]
    assert fit["library"] and fit["calls"] == 1
    assert 300 * 10 * 8 <= fit["argument_bytes"] < 300 * 10 * 8 + 2000
    assert {"class: sklearn.ensemble._forest.RandomForestClassifier"} == {
        found["rule"] for found in report["suggestions"]
    }


def test_threads_generators_and_recursion_are_counted_once() -> None:
    import threading

    def name(file: str) -> bool:
        return file == __file__

    with Profile(name, lambda module: False) as profile:
        recursive(5)
        list(numbers(3))
        thread = threading.Thread(target=recursive, args=(2,))
        thread.start()
        thread.join()
    found = profile.table[f"{__name__}.recursive"]
    assert found.calls == 6 + 3
    assert found.seconds <= sum(found.within.values()) + 1e-9, "inner calls are part of the outermost"
    assert f"{__name__}.numbers" not in profile.table


def recursive(depth: int) -> int:
    return depth and recursive(depth - 1)


def numbers(count: int) -> Any:
    yield from range(count)


def test_buffers_are_counted_without_being_copied() -> None:
    import numpy as np

    size = written(np.zeros(1 << 20, np.uint8))[0]
    assert 1 << 20 <= size < (1 << 20) + 500


def calls(name: str, count: int, seconds: float, size: int = 0, **more: Any) -> Calls:
    return Calls("m", name, calls=count, seconds=seconds, argument_bytes=size, **more)


def table(*entries: Calls) -> dict[str, Calls]:
    return {entry.name: entry for entry in entries}


def rules(*entries: Calls, total: float = 10.0) -> list[str]:
    return [found.rule for found in suggest(table(*entries), total)]


def test_a_call_costs_what_was_measured_and_its_bytes() -> None:
    assert crossing_seconds(calls("f", 1, 1.0)) == CALL_SECONDS
    assert crossing_seconds(calls("f", 1, 1.0, size=1_200_000_000)) == pytest.approx(CALL_SECONDS + 1.0)


def test_rules_are_suggested_for_what_is_long_enough_and_small_enough() -> None:
    assert rules(calls("f", 10, 5.0)) == ["function: m.f"]
    assert rules(calls("f", 10_000, 5.0)) == [], "0.5 ms a call is less than the call costs"
    assert rules(calls("f", 10, 5.0, size=2_000_000_000)) == [], "its arguments take longer than it"
    assert rules(calls("f", 1, 0.1)) == [], "too little of the run"
    assert rules(calls("f", 10, 5.0, obstacle="cannot be pickled")) == []
    assert rules(calls("Net.fit", 10, 5.0), calls("Net.predict", 10, 2.0)) == ["class: m.Net"]


def test_of_nested_functions_the_outermost_is_suggested_unless_it_is_the_program() -> None:
    step = calls("step", 100, 6.0, within={"m.epoch": 6.0})
    epoch = calls("epoch", 5, 6.5, within={"m.main": 6.5})
    assert rules(step, epoch) == ["function: m.epoch"]
    main = calls("main", 1, 9.9, within={"": 9.9})
    assert rules(step, epoch, main) == ["function: m.epoch"]
    assert rules(main) == ["function: m.main"], "better than nothing"


def test_functions_that_call_each_other_end() -> None:
    a = calls("a", 10, 5.0, within={"m.b": 5.0})
    b = calls("b", 10, 5.0, within={"m.a": 5.0})
    assert isinstance(rules(a, b), list)


LIB = """
import random
import time
import numpy as np

seen = []
total = 0
scale = 1.0

def _long():
    # As work would take, on a machine however busy.
    time.sleep(0.1)

class Options:
    best = None

class State:
    def __init__(self):
        self.step, self.rows = 0, [1.0]

def smooth(a, width=3, *more, **named):
    _long()
    a[1:-1] = (a[:-2] + a[1:-1] + a[2:]) / width + 1

def grow(things, state):
    _long()
    things["n"].append(len(things["n"]))
    state.step += 1
    state.rows[0] /= 2

def spread(*arrays):
    _long()
    for each in arrays:
        each *= 2

def pure(a):
    _long()
    return float(a.sum())

def remembers(a):
    _long()
    seen.append(len(a))

def counts(a):
    global total
    _long()
    total += len(a)

def of_class(a):
    _long()
    Options.best = len(a)

def draws(a):
    _long()
    return np.random.random() + random.random()

def scaled(a):
    _long()
    return float(a.sum() * scale)

class Model:
    def __init__(self):
        self.weight = 1.0
    def fit(self, a, log):
        _long()
        self.weight += float(a.sum())
        log.append(self.weight)
        a += 1
"""

CHANGES = """
import random
import numpy as np
import lib

def main():
    np.random.seed(3)
    random.seed(4)
    a, b = np.arange(9.0), np.ones((2, 3))
    things, state, log = {"n": []}, lib.State(), []
    model = lib.Model()
    for step in range(4):
        lib.smooth(a, width=3)
        lib.grow(things, state)
        lib.spread(a, b)
        lib.remembers(a)
        lib.counts(a)
        lib.of_class(a)
        lib.scale += 1
        model.fit(a, log)
        print(step, a.tolist(), b.tolist(), things, state.step, state.rows, lib.pure(a), model.weight, log)
        print(lib.seen, lib.total, lib.Options.best, lib.draws(a), lib.scaled(a))

main()
"""


def test_the_rules_that_are_printed_change_nothing_of_what_the_program_says(project: Project) -> None:
    (project.folder / "lib.py").write_text(LIB)
    (project.folder / "main.py").write_text(CHANGES)
    local = project.local("main.py")
    assert local.returncode == 0, local.stderr
    command = [REMOTEGPU, "offload", "explain", "--python", sys.executable, "main.py"]
    done = subprocess.run(command, cwd=project.folder, capture_output=True, text=True, timeout=110, check=True)
    printed = done.stdout
    assert printed.startswith(local.stdout), "explain runs it as it is"
    rules = printed[printed.index("offload:\n") :]
    assert "  - {function: lib.smooth, mutates: [a]}" in rules
    assert "  - {function: lib.grow, mutates: [things, state]}" in rules
    assert "  - {function: lib.spread, mutates: auto}" in rules
    assert "  - function: lib.pure " in rules
    assert "  - {class: lib.Model, mutates: [a, log]}" in rules
    for name, why in {
        "remembers": "it changes the global lib.seen",
        "counts": "it changes the global lib.total",
        "of_class": "it changes the global lib.Options",
        "draws": "it draws from the random numbers of ",
        "scaled": "it reads the global lib.scale, which the program changes",
    }.items():
        assert re.search(rf"^  # - function: lib\.{name}  # not as it is: {why}", rules, re.MULTILINE), (name, rules)
    (project.folder / "remotegpu.yaml").write_text(f"version: 1\n{rules}")
    remote = project.offloaded("main.py", split="rules")
    same(local, remote)


def test_rules_that_ignored_the_changes_would_be_seen(project: Project) -> None:
    """That the comparison above can fail."""
    (project.folder / "lib.py").write_text(LIB)
    (project.folder / "main.py").write_text(CHANGES)
    (project.folder / "remotegpu.yaml").write_text("version: 1\noffload:\n  - function: lib.smooth\n")
    local, remote = project.local("main.py"), project.offloaded("main.py", split="rules")
    assert remote.returncode == 0, remote.stderr
    assert remote.stdout != local.stdout


def test_what_only_some_arguments_tell_is_not_looked_at_in_those_that_are_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(changes, "COMPARED", 1 << 16)
    small, large = bytearray(1 << 10), bytearray(1 << 17)
    assert changes.written(small)[1] is not None
    size, state = changes.written(large)
    assert size >= 1 << 17 and state is None


def test_time_on_the_device_is_not_a_reason_for_a_rule() -> None:
    step = calls("step", 10, 5.0, tensor_seconds=4.0)
    assert rules(step) == [] and served_by_torch(step)
    assert rules(calls("step", 10, 5.0, tensor_seconds=1.0)) == ["function: m.step"]
