"""scikit-learn as everybody writes it; a profile says what of it runs elsewhere."""

import pickle

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler


class Squares(TransformerMixin, BaseEstimator):
    def __init__(self, scale=1.0):
        self.scale = scale

    def fit(self, images, labels=None):
        self.offset_ = images.mean()
        return self

    def transform(self, images):
        return np.hstack([images, self.scale * (images - self.offset_) ** 2])


def main():
    images, labels = (array[:400] for array in load_digits(return_X_y=True))
    train, test, train_labels, test_labels = train_test_split(images, labels, random_state=0)
    forest = RandomForestClassifier(10, random_state=0).fit(train, train_labels)
    print(forest, round(forest.score(test, test_labels), 6), forest.predict(test[:10]).tolist())
    print(
        np.round(forest.feature_importances_[:5], 6),
        len(forest.estimators_),
        clone(forest).get_params()["n_estimators"],
    )
    pipeline = make_pipeline(Squares(), StandardScaler(), LogisticRegression(max_iter=200))
    search = GridSearchCV(pipeline, {"squares__scale": [0.5, 1.0], "logisticregression__C": [0.1, 1.0]}, cv=3)
    search.fit(train, train_labels)
    print(search.best_params_, round(float(search.score(test, test_labels)), 6))
    print(np.round(search.cv_results_["mean_test_score"], 6).tolist())
    print(np.round(cross_val_score(pipeline, train, train_labels, cv=3), 6))
    again = pickle.loads(pickle.dumps(forest))
    print((again.predict(test) == forest.predict(test)).all())
    print(type(search.best_estimator_).__name__, [name for name, _ in search.best_estimator_.steps])


if __name__ == "__main__":
    main()
