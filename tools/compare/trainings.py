"""Trains on the GPU and prints the seconds, for the tables of docs/benchmarks.md.

    trainings.py catboost|xgboost [NAME=VALUE ...]

NAME=VALUE are options of the library. `tools/compare/mirrors.py` runs this program in the library's own venv.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Data = Any


def made(rows: int, columns: int) -> tuple[Data, Data]:
    features = np.random.default_rng(1).standard_normal((rows, columns)).astype(np.float32)
    return features, features[:, 0] * 2 + features[:, 1]


def catboost(options: dict[str, str]) -> Callable[[], object]:
    """Returns a training on 2,000 x 20 numbers with 20 trees."""
    regressor = importlib.import_module("catboost").CatBoostRegressor
    fixed = {"iterations": 20, "task_type": "GPU", "devices": "0", "verbose": 0, "allow_writing_files": False}
    model, data = regressor(**fixed, **options), made(2000, 20)
    return lambda: model.fit(*data)


def xgboost(options: dict[str, str]) -> Callable[[], object]:
    """Returns a training on 20 MB (50,000 x 100 numbers) with 5 rounds."""
    xgb = importlib.import_module("xgboost")
    matrix = xgb.QuantileDMatrix(*made(50_000, 100))
    return lambda: xgb.train({"device": "cuda", "tree_method": "hist"} | options, matrix, 5)


train = {"catboost": catboost, "xgboost": xgboost}[sys.argv[1]](dict(word.split("=", 1) for word in sys.argv[2:]))
began = time.perf_counter()
train()
print(f"{' '.join(sys.argv[1:])}: trained in {time.perf_counter() - began:.2f} s")
