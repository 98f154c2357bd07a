"""An ordinary program: numpy and scikit-learn, and nothing of remotegpu."""

import socket

import steps
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier

digits = load_digits()
features, where = steps.describe(digits.images / 16)
forest = RandomForestClassifier(n_estimators=50, random_state=0)
forest.fit(features[:1200], digits.target[:1200])

print("program runs on", socket.gethostname())
print("described on", where)
print(f"features {features.shape} {features.sum():.6f}")
print(f"accuracy {forest.score(features[1200:], digits.target[1200:]):.6f}")
