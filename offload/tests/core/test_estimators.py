"""Estimators of scikit-learn that live in an acceptor: fitted, searched, cloned, pickled as ever."""

from __future__ import annotations

import copy
import os
import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.datasets
import sklearn.ensemble
import sklearn.linear_model
import sklearn.model_selection
import sklearn.svm
from offload_local import local_session
from sklearn.base import BaseEstimator, ClassifierMixin, clone, is_classifier
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

from remotegpu_offload.client.session import Session
from remotegpu_offload.config.model import ClassRule, CodeRules, Config
from remotegpu_offload.functions import client

NAMES = (
    "sklearn.ensemble.RandomForestClassifier",
    "sklearn.linear_model.LogisticRegression",
    "sklearn.model_selection.GridSearchCV",
    "sklearn.svm.SVC",
)
CONFIG = Config(rules=tuple(ClassRule(name) for name in NAMES), code=CodeRules(page=()))
X, Y = (array[:300] for array in sklearn.datasets.load_digits(return_X_y=True))


class Replaced:
    """The classes that rules have put into scikit-learn's modules, and what was there."""

    def __init__(self, session: Session) -> None:
        modules = (sklearn.ensemble, sklearn.linear_model, sklearn.model_selection, sklearn.svm)
        self.before: dict[str, Any] = {}
        for module, name in zip(modules, NAMES, strict=True):
            short = name.rpartition(".")[2]
            self.before[short] = (module, getattr(module, short))
            assert client.install(module, CONFIG, session) == [name]

    def __getattr__(self, name: str) -> Any:
        module, _ = self.before[name]
        return getattr(module, name)

    def local(self, name: str) -> Any:
        return self.before[name][1]

    def restore(self) -> None:
        for name, (module, original) in self.before.items():
            setattr(module, name, original)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with local_session(CONFIG) as session:
        yield session


@pytest.fixture
def remote(session: Session) -> Iterator[Replaced]:
    replaced = Replaced(session)
    try:
        yield replaced
    finally:
        replaced.restore()


def trips(session: Session) -> int:
    return session.peer.counters.round_trips


def test_fitting_and_predicting_are_one_trip_each(session: Session, remote: Replaced) -> None:
    start = trips(session)
    forest = remote.RandomForestClassifier(5, random_state=1)
    assert forest.get_params()["n_estimators"] == 5 and forest.max_depth is None
    assert repr(forest) == "RandomForestClassifier(n_estimators=5, random_state=1)"
    assert is_classifier(forest) and isinstance(forest, remote.local("RandomForestClassifier"))
    with pytest.raises(NotFittedError):
        check_is_fitted(forest)
    assert not hasattr(forest, "classes_")
    assert trips(session) == start
    assert forest.fit(X, Y) is forest
    # To make it there with its parameters, and to fit it.
    assert trips(session) - start == 2
    expected = remote.local("RandomForestClassifier")(5, random_state=1).fit(X, Y)
    np.testing.assert_array_equal(forest.predict(X), expected.predict(X))
    np.testing.assert_array_equal(forest.predict_proba(X), expected.predict_proba(X))
    assert trips(session) - start == 4
    assert forest.score(X, Y) == expected.score(X, Y)
    np.testing.assert_array_equal(forest.classes_, expected.classes_)
    np.testing.assert_array_equal(forest.feature_importances_, expected.feature_importances_)
    assert len(forest) == 5 and forest.estimators_[0].tree_.node_count == expected.estimators_[0].tree_.node_count
    check_is_fitted(forest)


def test_cloning_costs_no_trip_and_forgets_what_was_fitted(session: Session, remote: Replaced) -> None:
    forest = remote.RandomForestClassifier(3, class_weight={0: 0.1}, random_state=0).fit(X, Y)
    start = trips(session)
    again = clone(forest)
    assert type(again) is type(forest) and again.get_params() == forest.get_params()
    assert not hasattr(again, "classes_") and trips(session) == start


def test_parameters_that_are_set_reach_the_acceptor(session: Session, remote: Replaced) -> None:
    forest = remote.RandomForestClassifier(3, random_state=0).fit(X, Y)
    assert forest.set_params(n_estimators=4) is forest
    forest.max_depth = 2
    forest.fit(X, Y)
    assert len(forest.estimators_) == 4 and forest.estimators_[0].get_depth() == 2
    with pytest.raises(ValueError, match="Invalid parameter"):
        forest.set_params(nothing=1)


def test_a_pipeline_and_a_search_here_use_them(session: Session, remote: Replaced) -> None:
    def search(kind: Any) -> Any:
        pipeline = Pipeline([("scale", StandardScaler()), ("forest", kind(random_state=0))])
        return sklearn.model_selection.GridSearchCV(pipeline, {"forest__n_estimators": [2, 4]}, cv=2)

    remote.restore()
    expected = search(remote.local("RandomForestClassifier")).fit(X, Y)
    # The search is scikit-learn's own here.
    local_search = remote.local("GridSearchCV")
    found = local_search(
        Pipeline(
            [
                ("scale", StandardScaler()),
                (
                    "forest",
                    client.decorated(remote.local("RandomForestClassifier"), NAMES[0], CONFIG, session)(random_state=0),
                ),
            ]
        ),
        {"forest__n_estimators": [2, 4]},
        cv=2,
    ).fit(X, Y)
    assert found.best_params_ == expected.best_params_ and found.best_score_ == expected.best_score_
    np.testing.assert_array_equal(found.predict(X), expected.predict(X))


def test_a_search_in_the_acceptor_is_one_call(session: Session, remote: Replaced) -> None:
    pipeline = make_pipeline(StandardScaler(), remote.local("LogisticRegression")(max_iter=500))
    grid = {"logisticregression__C": [0.1, 1.0]}
    search = remote.GridSearchCV(pipeline, grid, cv=2)
    start = trips(session)
    search.fit(X, Y)
    assert trips(session) - start == 2
    expected = remote.local("GridSearchCV")(pipeline, grid, cv=2).fit(X, Y)
    assert search.best_params_ == expected.best_params_ and search.best_score_ == expected.best_score_
    assert set(search.cv_results_) == set(expected.cv_results_)
    np.testing.assert_array_equal(search.predict(X), expected.predict(X))
    assert type(search.best_estimator_) is Pipeline
    assert cross_val_score(search, X, Y, cv=2).shape == (2,)


def test_methods_that_only_some_have(session: Session, remote: Replaced) -> None:
    one = remote.GridSearchCV(remote.local("LogisticRegression")(), {"C": [1.0]}, cv=2)
    none = remote.GridSearchCV(sklearn.linear_model.RidgeClassifier(), {}, cv=2).fit(X, Y)
    assert hasattr(one, "predict_proba") and not hasattr(none, "predict_proba")
    one.fit(X, Y)
    assert one.predict_proba(X[:2]).shape == (2, 10)


def test_frames_come_out_where_they_are_asked_for(session: Session, remote: Replaced) -> None:
    scaler = client.decorated(
        StandardScaler,
        "sklearn.preprocessing.StandardScaler",
        Config(rules=(ClassRule("sklearn.preprocessing.*"),)),
        session,
    )()
    assert scaler.fit(X).set_output(transform="pandas").transform(X[:2]).shape == (2, 64)
    assert type(scaler.transform(X[:2])) is pd.DataFrame and type(clone(scaler).fit_transform(X[:2])) is pd.DataFrame


def test_pickles_and_copies_have_what_was_fitted(session: Session, remote: Replaced) -> None:
    forest = remote.RandomForestClassifier(3, random_state=0).fit(X, Y)
    expected = forest.predict(X)
    data = pickle.dumps(forest)
    for made in (pickle.loads(data), copy.deepcopy(forest), copy.copy(forest)):
        assert type(made) is type(forest) and made is not forest and made.n_estimators == 3
        np.testing.assert_array_equal(made.predict(X), expected)
    unfitted = copy.deepcopy(remote.RandomForestClassifier(7))
    assert unfitted.n_estimators == 7 and not hasattr(unfitted, "classes_")
    remote.restore()
    local = pickle.loads(data)
    assert type(local) is remote.local("RandomForestClassifier")
    np.testing.assert_array_equal(local.predict(X), expected)


def test_a_users_own_estimator_derived_from_one(session: Session, remote: Replaced) -> None:
    class Doubled(remote.RandomForestClassifier):  # type: ignore[misc,name-defined]
        def __init__(self, n_estimators: int = 3, factor: int = 2, random_state: int | None = None) -> None:
            super().__init__(n_estimators, random_state=random_state)
            self.factor = factor

        def predict(self, x: Any) -> Any:
            return super().predict(x) * self.factor

        def where(self) -> int:
            return os.getpid()

    model = Doubled(3, factor=3, random_state=0)
    assert clone(model).get_params() == {"n_estimators": 3, "factor": 3, "random_state": 0}
    model.fit(X, Y)
    plain = remote.local("RandomForestClassifier")(3, random_state=0).fit(X, Y)
    np.testing.assert_array_equal(model.predict(X), plain.predict(X) * 3)
    # What scikit-learn calls there is the user's.
    assert model.score(X, Y) == np.mean(plain.predict(X) * 3 == Y) and model.where() != os.getpid()


def test_warnings_of_fitting_are_raised_here(session: Session, remote: Replaced) -> None:
    with pytest.warns(ConvergenceWarning, match="failed to converge"):
        remote.LogisticRegression(max_iter=2).fit(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        remote.LogisticRegression(max_iter=2).fit(X, Y)


def test_an_estimator_without_a_rule_is_sent_and_comes_back_fitted(session: Session) -> None:
    class Mean(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
        def fit(self, x: Any, y: Any) -> Any:
            self.mean_ = np.mean(y)
            self.classes_ = np.unique(y)
            return self

        def predict(self, x: Any) -> Any:
            return np.full(len(x), round(self.mean_))

    search = client.decorated(GridSearchCV, NAMES[2], CONFIG, session)(Mean(), {}, cv=2).fit(X, Y)
    best = search.best_estimator_
    assert type(best) is Mean and best.mean_ == np.mean(Y)
