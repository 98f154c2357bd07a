"""scikit-learn: a pipeline with a transformer of the user's own, searched over by two worker processes."""

import joblib
import numpy as np
from features import Squares
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler


def main():
    images, labels = load_digits(return_X_y=True)
    images, labels = images[:400], labels[:400]
    train, test, train_labels, test_labels = train_test_split(images, labels, random_state=0)
    pipeline = make_pipeline(Squares(), StandardScaler(), LogisticRegression(max_iter=200))
    search = GridSearchCV(pipeline, {"squares__scale": [0.5, 1.0], "logisticregression__C": [0.1, 1.0]}, cv=3, n_jobs=2)
    search.fit(train, train_labels)
    print(search.best_params_, repr(float(search.score(test, test_labels))))
    print(np.round(search.cv_results_["mean_test_score"], 6).tolist())
    joblib.dump(search.best_estimator_, "out/model.joblib")
    print((joblib.load("out/model.joblib").predict(test) == search.predict(test)).all())


if __name__ == "__main__":
    main()
