"""XGBoost on the GPU against its CPU back end, on features of few values, where both find the same cuts."""

from __future__ import annotations

from collections.abc import Iterator

import cases
import numpy as np
import xgboost as xgb
from cases import Value

rng = np.random.default_rng(41)
WITHIN = 1e-5
FEATURES = rng.integers(0, 12, (3000, 8)).astype(np.float32)


def both(options: dict[str, object], target: np.ndarray, rounds: int = 15) -> Iterator[Value]:
    made = {}
    for device in ("cuda", "cpu"):
        matrix = xgb.QuantileDMatrix(FEATURES, target, max_bin=512)
        made[device] = xgb.train({"tree_method": "hist", "max_bin": 512, "device": device} | options, matrix, rounds)
    plain = xgb.DMatrix(FEATURES)
    yield Value(made["cuda"].predict(plain), made["cpu"].predict(plain), WITHIN)
    made["cuda"].set_param({"device": "cpu"})
    yield Value(made["cuda"].predict(plain), made["cpu"].predict(plain), WITHIN)


def regression() -> Iterator[Value]:
    target = np.sin(FEATURES[:, 0]) * 3 + FEATURES[:, 1] * FEATURES[:, 2] / 10 + rng.standard_normal(3000) * 0.1
    yield from both({"objective": "reg:squarederror", "max_depth": 4}, target)


def classes() -> Iterator[Value]:
    labels = (FEATURES[:, 0] + FEATURES[:, 1] > 11).astype(int)
    yield from both({"objective": "binary:logistic", "max_depth": 4}, labels, rounds=10)
    yield from both(
        {"objective": "multi:softprob", "num_class": 3, "max_depth": 3}, FEATURES[:, 3].astype(int) % 3, rounds=5
    )


def predicts_and_trains_with_one_matrix() -> Iterator[Value]:
    """A prediction leaves the matrix on the GPU; training then copies from there."""
    target = FEATURES[:, 0] - FEATURES[:, 1] ** 2 / 5
    options = {"tree_method": "hist", "max_bin": 512, "max_depth": 3}
    found = {}
    for device in ("cuda", "cpu"):
        matrix = xgb.DMatrix(FEATURES, target)
        first = xgb.train(options | {"device": device}, matrix, 3)
        first.predict(matrix)
        again = xgb.train(options | {"device": device}, matrix, 8, xgb_model=first)
        found[device] = (
            again.predict(matrix),
            again.predict(matrix, pred_contribs=True),
            again.predict(matrix, pred_leaf=True),
        )
    for gpu, cpu in zip(found["cuda"], found["cpu"], strict=True):
        yield Value(gpu, cpu, 1e-4)


def ranking() -> Iterator[Value]:
    """The score that the GPU reports, computed again from its predictions."""
    groups, relevance = np.repeat(np.arange(100), 30), rng.integers(0, 4, 3000)
    matrix = xgb.DMatrix(FEATURES + relevance[:, None] * 0.5, relevance, qid=groups)
    options = {"objective": "rank:ndcg", "device": "cuda", "tree_method": "hist", "eval_metric": "ndcg@30"}
    history: dict[str, dict[str, list[float]]] = {}
    model = xgb.train(options, matrix, 6, evals=[(matrix, "it")], evals_result=history, verbose_eval=False)
    score, discount, found = model.predict(matrix), 1 / np.log2(np.arange(2, 32)), []
    for group in range(100):
        gain = 2.0 ** relevance[groups == group] - 1
        found.append(
            (gain[np.argsort(-score[groups == group], kind="stable")] * discount).sum()
            / (np.sort(gain)[::-1] * discount).sum()
        )
    yield Value(np.float64(history["it"]["ndcg@30"][-1]), np.mean(found), 2e-3)


if __name__ == "__main__":
    cases.main(globals())
