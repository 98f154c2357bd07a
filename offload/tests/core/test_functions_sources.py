"""Calls and other services: sources that were edited in the meantime, and files that are mapped into memory."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from offload_local import local_session

import remotegpu_offload
from remotegpu_offload.client.session import Session
from remotegpu_offload.code.server import CodeServer
from remotegpu_offload.config.model import CodeRules, Config, FileRules, FunctionRule
from remotegpu_offload.functions import client

FIRST = """
import numpy as np
from edited_constants import FACTOR

def scaled(value):
    return value * FACTOR

def fill(path, value):
    mapped = np.memmap(path, dtype=np.float64, mode="r+")
    mapped[3:5] = value
    return None
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "edited_steps.py").write_text(FIRST)
    (tmp_path / "edited_constants.py").write_text("FACTOR = 2\n")
    sys.path.insert(0, str(tmp_path))
    importlib.invalidate_caches()
    try:
        yield tmp_path
    finally:
        sys.path.remove(str(tmp_path))
        for name in ("edited_steps", "edited_constants"):
            sys.modules.pop(name, None)


@pytest.fixture
def session(folder: Path) -> Iterator[Session]:
    config = Config(
        rules=(FunctionRule("edited_steps.*"),),
        code=CodeRules(page=("edited_*",)),
        files=FileRules(write=(f"{folder}/*.bin",)),
    )
    with local_session(config) as session:
        client.install(importlib.import_module("edited_steps"), config, session)
        yield session


def test_a_call_runs_the_source_as_it_is_now(session: Session, folder: Path) -> None:
    scaled = importlib.import_module("edited_steps").scaled
    assert scaled(21) == 42
    trips = session.peer.counters.round_trips
    (folder / "edited_constants.py").write_text("FACTOR = 1000\n")
    assert scaled(21) == 21000
    assert scaled(2) == 2000
    # The check for changes needs no round trip.
    assert session.peer.counters.round_trips - trips == 2


def test_a_function_of_the_program_finds_modules_as_they_are_now(session: Session, folder: Path) -> None:
    """The function travels once, and holds modules that it refers to."""
    names: dict[str, Any] = {"__name__": "__main__", "edited_steps": importlib.import_module("edited_constants")}
    exec("def f(value):\n    return value * edited_steps.FACTOR\n", names)
    remote = client.wrap(names["f"], FunctionRule("__main__.f"), session)
    assert [remote(3), remote(4)] == [6, 8]
    (folder / "edited_constants.py").write_text("FACTOR = 500\n")
    importlib.reload(sys.modules["edited_constants"])
    assert [remote(3), remote(4)] == [1500, 2000]


def test_what_a_call_writes_through_a_map_is_in_the_file_when_it_returns(session: Session, folder: Path) -> None:
    path = folder / "numbers.bin"
    np.arange(8, dtype=np.float64).tofile(path)
    importlib.import_module("edited_steps").fill(str(path), 7.5)
    assert np.fromfile(path).tolist() == [0.0, 1.0, 2.0, 7.5, 7.5, 5.0, 6.0, 7.0]


OURS = """
import importlib
import sys

def loaded(names):
    import remotegpu_offload.reverse.signing
    for name in names:
        assert name not in sys.modules
        importlib.import_module(name)
    ours = [name for name in sys.modules if name.partition(".")[0] in ("remotegpu", "remotegpu_offload")]
    return {name: type(sys.modules[name].__loader__).__name__ for name in ours}
"""


@pytest.mark.parametrize("page", ["./", "remotegpu_offload", "./remotegpu_offload"])
@pytest.mark.parametrize("prefer", ["server-installed", "client"])
def test_the_acceptor_runs_its_own_modules(
    folder: Path, monkeypatch: pytest.MonkeyPatch, page: str, prefer: Literal["server-installed", "client"]
) -> None:
    """The acceptor's own modules run, though the client's folder holds this very package, and its module imports some
    of it."""
    (folder / "edited_ours.py").write_text(OURS)
    rules = (FunctionRule("edited_ours.*"),)
    code = CodeRules(page=(page, "edited_*"), prefer=prefer)
    home = Path(remotegpu_offload.__file__).parents[1]
    monkeypatch.syspath_prepend(str(home))
    with local_session(Config(rules=rules, code=code, folder=home)) as session:
        module = importlib.import_module("edited_ours")
        client.install(module, session.config, session)
        late = ["remotegpu_offload.objects.arrays", "remotegpu_offload.explain.suggest", "remotegpu.api.durations"]
        found = module.loaded(late)
        served = session.services["code"]
        assert isinstance(served, CodeServer) and "edited_ours" in served._served
        assert not [name for name in served._served if name.startswith("remotegpu")]
    del sys.modules["edited_ours"]
    assert found.keys() >= {*late, "remotegpu_offload.reverse.signing", "remotegpu_offload.wire.peer"}
    assert set(found.values()) == {"SourceFileLoader"}
