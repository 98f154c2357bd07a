"""A model behind HTTP: POST a list of 64 numbers, and get the scores of ten classes, which a kernel computes.

An ordinary numba-cuda program; it knows nothing of shares.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
from numba import cuda

CLASSES, FEATURES = 10, 64


@cuda.jit
def multiply(weights, features, scores):
    row = cuda.grid(1)
    if row < scores.size:
        total = 0.0
        for column in range(features.size):
            total += weights[row, column] * features[column]
        scores[row] = total


class Model:
    def __init__(self):
        weights = np.random.default_rng(1).standard_normal((CLASSES, FEATURES))
        self.weights = cuda.to_device(weights)
        # The first launch compiles; who asks later does not wait for that.
        self.scores([0] * FEATURES)

    def scores(self, numbers):
        scores = cuda.device_array(CLASSES)
        multiply[1, 32](self.weights, cuda.to_device(np.asarray(numbers, dtype=np.float64)), scores)
        return scores.copy_to_host().tolist()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        """The probe."""
        self._answer(200, {"ready": True})

    def do_POST(self):
        numbers = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if len(numbers) != FEATURES:
            self._answer(400, {"error": f"send a list of {FEATURES} numbers, not of {len(numbers)}"})
        else:
            self._answer(200, {"scores": self.server.model.scores(numbers)})

    def _answer(self, status, content):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    model = Model()
    server = HTTPServer(("", int(sys.argv[1])), Handler)
    server.model = model
    server.serve_forever()
