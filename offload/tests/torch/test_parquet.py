"""Parquet files of the client, which Arrow opens in C, in a whole program that runs in the acceptor."""

from __future__ import annotations

from pathlib import Path

import pytest
from offload_programs import Project, same

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(300)]

MAKE = """
import pandas as pd
pd.DataFrame({"a": range(1000), "b": map(str, range(1000))}).to_parquet("data/in.parquet")
"""

PROGRAM = """
import os
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

frame = pd.read_parquet("data/in.parquet")
print(frame.shape, frame.a.sum())
frame.to_parquet("out/frame.parquet")
frame.to_feather("out/frame.feather")
print(pd.read_parquet("out/frame.parquet").equals(frame), pd.read_feather("out/frame.feather").equals(frame))

table = pq.read_table("data/in.parquet")
pq.write_table(table, "out/table.parquet")
print(pq.ParquetFile("out/table.parquet").metadata.num_rows, pq.read_schema("out/table.parquet").names)
keyed = table.append_column("k", pa.array([n % 3 for n in range(1000)]))
pq.write_to_dataset(keyed, "out/parts", partition_cols=["k"], basename_template="p-{i}.parquet")
print(sorted(os.listdir("out/parts")))
parts = ds.dataset("out/parts", partitioning="hive")
print(parts.count_rows(), parts.to_table(filter=pc.field("k") == 1).num_rows)
print(pq.read_table("out/parts", columns=["a"], filters=[("a", "<", 10)]).num_rows)
ds.write_dataset(table, os.path.abspath("out/again"), format="parquet")
for wrong in ("data/none.parquet", "out/none/x.parquet"):
    try:
        pq.read_table(wrong)
    except OSError as error:
        print(type(error).__name__)
try:
    pq.write_table(table, "out/none/x.parquet")
except OSError as error:
    print(type(error).__name__)
"""


def test_parquet_files_and_datasets(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("remotegpu.yaml", 'version: 1\nfiles: {read: ["./data/**"], write: ["./out/**"]}\n')
    project.write("make.py", MAKE)
    project.write("main.py", PROGRAM)
    for name in ("data", "out"):
        (project.folder / name).mkdir()
    assert project.local("make.py").returncode == 0
    local = project.local("main.py")
    assert local.returncode == 0, local.stderr
    written = project.take("out")
    (project.folder / "out").mkdir()
    same(local, project.offloaded("main.py"))
    assert project.files("out") == written
    assert len(written) == 7
