"""The test build that can leave out a defence stays out of releases, and the table of attacks names existing things."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from attacker import acceptors
from attacker.attack import UNDEFENDED, VARIABLE, How, Where
from attacker.table import ATTACKS, MODULES
from attacker.undefended_appliance import PATCHES
from support.system import DIST, ROOT

DEFENCES = ROOT / "remoting" / "worker" / "src" / "guard" / "defences.rs"


def test_a_release_has_every_defence() -> None:
    """Released programs do not read the variable, and contain no name of a rule that could be left out."""
    programs = [path for path in DIST.rglob("*") if path.is_file() and path.suffix not in {".py", ".json"}]
    assert {path.name for path in programs} >= {"remotegpu-worker", "remotegpu-gateway"}
    names = (VARIABLE.encode(), b"REMOTEGPU_ORDER_FAULT")
    assert [str(path) for path in programs if any(name in path.read_bytes() for name in names)] == []


def test_the_search_would_find_the_test_build() -> None:
    if not (UNDEFENDED / "remotegpu-worker").exists():
        pytest.skip("`make undefended` has not been run: the security shard does")
    for name in ("remotegpu-worker", "remotegpu-gateway"):
        assert VARIABLE.encode() in (UNDEFENDED / name).read_bytes()


def test_nothing_that_is_shipped_is_built_with_a_feature_for_tests() -> None:
    features = set()
    for crate in ("client", "driverapi", "worker"):
        manifest = tomllib.loads((ROOT / "remoting" / crate / "Cargo.toml").read_text())
        assert "default" not in manifest["features"]
        features |= set(manifest["features"])
    assert features == {"lock-order", "order-faults", "undefended"}
    for script in ("tools/dist.sh", "tools/pod.sh", "Dockerfile"):
        words = set(re.findall(r"[\w-]+", (ROOT / script).read_text()))
        assert not words & {*features, "all-features"}, script


def test_the_table_has_20_attacks_from_each_side_and_10_from_acceptors() -> None:
    count = Counter(attack.where for attack in ATTACKS)
    assert count[Where.NETWORK] >= 20 and count[Where.SESSION] >= 20 and count[Where.ACCEPTOR] >= 10
    names = [(attack.where, attack.name) for attack in ATTACKS]
    assert sorted(names, key=str) == sorted(set(names), key=str)
    assert [attack.name for attack in ATTACKS if not hasattr(MODULES[attack.where], attack.name)] == []


def test_every_defence_that_can_be_left_out_is_a_control() -> None:
    """Each is in the test build or in the patches, and no control names one that does not exist."""
    built = set(re.findall(r'^    \w+ = "([a-z-]+)";$', DEFENCES.read_text(), re.MULTILINE))
    named = {attack.control.name for attack in ATTACKS if attack.control.how is How.BUILD}
    assert named == built != set()
    patched = {attack.control.name for attack in ATTACKS if attack.control.how is How.PATCH}
    assert patched == set(PATCHES) | set(acceptors.PATCHES)


def test_what_has_no_control_says_why_and_the_documents_count_it() -> None:
    without = [attack for attack in ATTACKS if attack.control.how is How.NONE]
    assert all(len(attack.control.name) > 20 for attack in without)
    page = (ROOT / "docs" / "security.md").read_text()
    found = re.search(r"(\d+) attacks[^.]*?, of which (\d+) have no control", page)
    assert found is not None
    assert (int(found[1]), int(found[2])) == (len(ATTACKS), len(without))


def test_every_test_that_the_security_page_names_exists() -> None:
    _check_named(ROOT / "docs" / "security.md", 30)


def test_every_test_that_the_table_of_46_names_exists() -> None:
    _check_named(ROOT / "docs" / "testing.md", 40)


def _check_named(page: Path, least: int) -> None:
    """`folder/file.py::test_name` or `file.rs::name`: the file is there and has such a function."""
    named = re.findall(r"`([\w/.-]+\.(?:py|rs))::(\w+)`", page.read_text())
    assert len(named) >= least
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (ROOT / file).is_file() or not re.search(rf"\b(?:def|fn) {name}\b", (ROOT / file).read_text())
    ]
    assert missing == []
