"""cuDF against pandas on the CPU: filters, sorts, joins, groups, strings, files of Parquet."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import cases
import cudf
import numpy as np
import pandas as pd
from cases import Value

rng = np.random.default_rng(56)
ROWS = 3000
FRAME = pd.DataFrame(
    {
        "key": rng.integers(0, 40, ROWS),
        "x": rng.standard_normal(ROWS),
        "y": rng.integers(-100, 100, ROWS),
        "word": np.array(["red", "green", "blue", "dark grey"])[rng.integers(0, 4, ROWS)],
    }
)


def columns(got: cudf.DataFrame, want: pd.DataFrame, within: float = 1e-12) -> Iterator[Value]:
    on_cpu = got.to_pandas()
    yield Value(np.array(list(on_cpu.columns)), np.array(list(want.columns)))
    for name in want.columns:
        if want[name].dtype.kind in "iuf":
            yield Value(on_cpu[name].to_numpy(), want[name].to_numpy(), within)
        else:
            yield Value(on_cpu[name].to_numpy().astype(str), want[name].to_numpy().astype(str))


def filters_and_sorts() -> Iterator[Value]:
    frame = cudf.from_pandas(FRAME)
    got = frame[(frame.x > 0) & (frame.y < 50)].sort_values(["key", "x"]).reset_index(drop=True)
    want = FRAME[(FRAME.x > 0) & (FRAME.y < 50)].sort_values(["key", "x"]).reset_index(drop=True)
    yield from columns(got, want)


def joins() -> Iterator[Value]:
    other = pd.DataFrame({"key": np.arange(0, 60, 2), "name": rng.standard_normal(30)})
    got = cudf.from_pandas(FRAME).merge(cudf.from_pandas(other), on="key").sort_values(["key", "x"])
    want = FRAME.merge(other, on="key").sort_values(["key", "x"])
    yield from columns(got.reset_index(drop=True), want.reset_index(drop=True))


def groups() -> Iterator[Value]:
    how = {"x": ["sum", "mean", "max"], "y": ["min", "count"]}
    got = cudf.from_pandas(FRAME).groupby("key").agg(how).sort_index().to_pandas()
    want = FRAME.groupby("key").agg(how).sort_index()
    yield Value(got.to_numpy().astype(float), want.to_numpy().astype(float), 1e-12)


def strings() -> Iterator[Value]:
    got, want = cudf.from_pandas(FRAME).word, FRAME.word
    yield Value(got.str.upper().to_pandas().to_numpy().astype(str), want.str.upper().to_numpy().astype(str))
    yield Value(got.str.contains("re").to_pandas().to_numpy(), want.str.contains("re").to_numpy())
    yield Value(got.str.len().to_pandas().to_numpy().astype(int), want.str.len().to_numpy().astype(int))


def parquet() -> Iterator[Value]:
    with tempfile.TemporaryDirectory() as folder:
        FRAME.to_parquet(f"{folder}/frame.parquet", compression="snappy")
        yield from columns(cudf.read_parquet(f"{folder}/frame.parquet"), FRAME)


if __name__ == "__main__":
    cases.main(globals())
