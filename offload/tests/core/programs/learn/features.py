import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin


class Squares(BaseEstimator, TransformerMixin):
    def __init__(self, scale=1.0):
        self.scale = scale

    def fit(self, x, y=None):
        return self

    def transform(self, x):
        return np.hstack([x, self.scale * np.square(x)])
