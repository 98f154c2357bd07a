"""CatBoost on the GPU: a fit that NumPy can state, and the CPU's predictions, scores and metrics for the same data."""

from __future__ import annotations

from collections.abc import Iterator

import cases
import numpy as np
from cases import Value
from catboost import CatBoostClassifier, CatBoostRegressor, Pool

rng = np.random.default_rng(40)
# Its default is 100 MiB of page-locked memory, more than a share has.
GPU = {"task_type": "GPU", "devices": "0", "pinned_memory_size": "1mb", "verbose": False, "allow_writing_files": False}
CPU = {"task_type": "CPU", "verbose": False, "allow_writing_files": False}


def means_of_groups() -> Iterator[Value]:
    """One tree without regularisation predicts the mean of each group of equal rows."""
    features = rng.integers(0, 2, (2000, 4)).astype(np.float32)
    target = features @ np.array([1.0, 2.5, -3.0, 7.0]) + rng.standard_normal(2000) * 0.1
    model = CatBoostRegressor(
        iterations=1, depth=4, learning_rate=1, l2_leaf_reg=0, random_strength=0, bootstrap_type="No",
        boost_from_average=False, **GPU,
    )  # fmt: skip
    model.fit(features, target)
    group = (features @ np.array([1, 2, 4, 8])).astype(int)
    means = np.bincount(group, target, 16) / np.bincount(group, minlength=16)
    yield Value(model.predict(features), means[group], 1e-5)


def as_on_the_cpu() -> Iterator[Value]:
    """Ten trees of both devices, on features of few values, where both find the same borders."""
    features = rng.integers(0, 6, (3000, 5)).astype(np.float32)
    target = np.sin(features).sum(1) + features[:, 0] * features[:, 1] + rng.standard_normal(3000) * 0.05
    options = {"iterations": 10, "depth": 4, "learning_rate": 0.3, "random_strength": 0, "bootstrap_type": "No"}
    options |= {"score_function": "L2", "leaf_estimation_iterations": 1}
    gpu = CatBoostRegressor(**options, **GPU).fit(features, target)
    cpu = CatBoostRegressor(boosting_type="Plain", **options, **CPU).fit(features, target)
    yield Value(gpu.predict(features), cpu.predict(features), 1e-4)


def classes_and_metrics() -> Iterator[Value]:
    """The metric that the GPU reports for each round is that of its own predictions."""
    features = rng.standard_normal((2000, 6)).astype(np.float32)
    labels = (features[:, 0] * features[:, 1] + features[:, 2] > 0).astype(int)
    pool = Pool(features, labels)
    model = CatBoostClassifier(
        iterations=20, depth=5, learning_rate=0.2, custom_metric=["Accuracy"], random_seed=3, **GPU
    )
    model.fit(pool)
    chance = model.predict_proba(pool)[:, 1].astype(np.float64)
    loss = -np.mean(np.where(labels == 1, np.log(chance), np.log(1 - chance)))
    yield Value(np.float64(model.evals_result_["learn"]["Logloss"][-1]), loss, 1e-5)
    yield Value(np.float64(model.evals_result_["learn"]["Accuracy"][-1]), np.mean((chance > 0.5) == labels), 1e-6)


def three_classes() -> Iterator[Value]:
    features = rng.integers(0, 3, (1500, 3)).astype(np.float32)
    labels = ((features[:, 0] + features[:, 1] * features[:, 2]) % 3).astype(int)
    model = CatBoostClassifier(iterations=30, depth=6, learning_rate=0.5, loss_function="MultiClass", **GPU)
    model.fit(features, labels)
    yield Value(model.predict(features)[:, 0].astype(int), labels)


if __name__ == "__main__":
    cases.main(globals())
