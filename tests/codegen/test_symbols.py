"""The committed table of symbols in frameworks' libraries agrees with the registry. `make symbols` generates it."""

from __future__ import annotations

import importlib
import io
from collections import Counter
from typing import Any

import pytest
import yaml
from remotegpu_codegen import registry
from remotegpu_codegen.states import states
from support.system import ROOT

FOLDER = ROOT / "remoting" / "registry"


@pytest.fixture(scope="module")
def table() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = yaml.safe_load((FOLDER / "symbols.yaml").read_text())["functions"]
    return rows


def test_every_row_says_what_the_registry_says(table: list[dict[str, Any]]) -> None:
    known = states(registry.load(FOLDER))
    assert {row["symbol"]: row["state"] for row in table} == {row["symbol"]: known.get(row["symbol"]) for row in table}
    assert max(Counter(row["symbol"] for row in table).values()) == 1


def test_every_refused_function_has_its_fallback_and_no_other(table: list[dict[str, Any]]) -> None:
    for row in table:
        assert ("fallback" in row) == (row["state"] == "refused"), row
        assert row["by"] and row.get("fallback", "x").strip(), row


def test_a_base_name_is_its_newest_function() -> None:
    def function(symbol: str, since: int, handling: str) -> dict[str, Any]:
        more = {"reason": "no"} if handling == "refused" else {}
        return {"number": since, "symbol": symbol, "since": since, "class": handling, **more}

    rows = [function("cuThing_v2", 3020, "refused"), function("cuThing", 2000, "local")]
    known = states(registry.Registry(registry.driver_functions({"g": rows}), ()))
    assert known == {"cuThing": "refused", "cuThing_v2": "refused"}


def test_names_are_whole_words_and_none_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    symbols = importlib.import_module("symbols")
    monkeypatch.setattr(symbols, "_PIECE", 7)
    library = b"\0cuMemAlloc_v2\0xcuFooBar\0cublasCreate\0 nvmlInit_v2\0ends in cuInit"
    assert symbols.names_in(io.BytesIO(library)) >= {"cuMemAlloc_v2", "nvmlInit_v2", "cuInit"}
    assert not symbols.names_in(io.BytesIO(library)) & {"cuFooBar", "cublasCreate"}
