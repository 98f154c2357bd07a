"""Train a small network on handwritten digits with numba-cuda. Knows nothing of remotegpu.

    python train.py [--epochs N] [--json FILE]

1,797 pictures of 8 x 8 pixels from scikit-learn; 1,437 to train, 360 to test; 64 -> 96 -> 10 with ReLU and softmax.
"""

import argparse
import json
import math
import time

import numpy as np
from numba import cuda, float32
from sklearn.datasets import load_digits

TILE = 16
BATCH = 96
HIDDEN = 96
CLASSES = 10


@cuda.jit
def matmul(a, b, out, transpose_a, transpose_b):
    """out = a @ b, either of them transposed on request, a tile of 16 x 16 at a time through shared memory."""
    tile_a = cuda.shared.array((TILE, TILE), float32)
    tile_b = cuda.shared.array((TILE, TILE), float32)
    col, row = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    inner = a.shape[0] if transpose_a else a.shape[1]
    total = float32(0)
    for start in range(0, inner, TILE):
        tile_a[ty, tx] = 0
        tile_b[ty, tx] = 0
        if row < out.shape[0] and start + tx < inner:
            tile_a[ty, tx] = a[start + tx, row] if transpose_a else a[row, start + tx]
        if col < out.shape[1] and start + ty < inner:
            tile_b[ty, tx] = b[col, start + ty] if transpose_b else b[start + ty, col]
        cuda.syncthreads()
        for k in range(TILE):
            total += tile_a[ty, k] * tile_b[k, tx]
        cuda.syncthreads()
    if row < out.shape[0] and col < out.shape[1]:
        out[row, col] = total


@cuda.jit
def add_bias(x, bias, relu):
    col, row = cuda.grid(2)
    if row < x.shape[0] and col < x.shape[1]:
        value = x[row, col] + bias[col]
        x[row, col] = max(value, float32(0)) if relu else value


@cuda.jit
def softmax_loss(logits, labels, gradient, loss):
    """Gradient of the mean cross-entropy, and each row's loss."""
    row = cuda.grid(1)
    if row < logits.shape[0]:
        top = logits[row, 0]
        for j in range(1, logits.shape[1]):
            top = max(top, logits[row, j])
        total = float32(0)
        for j in range(logits.shape[1]):
            total += math.exp(logits[row, j] - top)
        for j in range(logits.shape[1]):
            p = math.exp(logits[row, j] - top) / total
            gradient[row, j] = (p - (float32(1) if j == labels[row] else float32(0))) / logits.shape[0]
        loss[row] = math.log(total) + top - logits[row, labels[row]]


@cuda.jit
def relu_backward(gradient, activation):
    col, row = cuda.grid(2)
    if row < gradient.shape[0] and col < gradient.shape[1] and activation[row, col] <= 0:
        gradient[row, col] = 0


@cuda.jit
def column_sum(x, out):
    col = cuda.grid(1)
    if col < x.shape[1]:
        total = float32(0)
        for row in range(x.shape[0]):
            total += x[row, col]
        out[col] = total


@cuda.jit
def momentum_step(weights, velocity, gradient, rate):
    i = cuda.grid(1)
    if i < weights.size:
        velocity[i] = float32(0.9) * velocity[i] - rate * gradient[i]
        weights[i] += velocity[i]


def tiles(shape):
    return (math.ceil(shape[1] / TILE), math.ceil(shape[0] / TILE)), (TILE, TILE)


class Layer:
    def __init__(self, inputs, outputs, rng):
        scale = math.sqrt(2 / inputs)
        self.weights = cuda.to_device(rng.normal(0, scale, (inputs, outputs)).astype(np.float32))
        self.bias = cuda.to_device(np.zeros(outputs, np.float32))
        self.d_weights = cuda.device_array((inputs, outputs), np.float32)
        self.d_bias = cuda.device_array(outputs, np.float32)
        self.v_weights = cuda.to_device(np.zeros((inputs, outputs), np.float32))
        self.v_bias = cuda.to_device(np.zeros(outputs, np.float32))

    def forward(self, x, out, relu):
        matmul[tiles(out.shape)](x, self.weights, out, False, False)
        add_bias[tiles(out.shape)](out, self.bias, relu)

    def backward(self, x, gradient):
        matmul[tiles(self.d_weights.shape)](x, gradient, self.d_weights, True, False)
        column_sum[1, 128](gradient, self.d_bias)

    def step(self, rate):
        for w, v, g in ((self.weights, self.v_weights, self.d_weights), (self.bias, self.v_bias, self.d_bias)):
            momentum_step[math.ceil(w.size / 128), 128](w.ravel(), v.ravel(), g.ravel(), rate)


class Network:
    def __init__(self, rng):
        self.first = Layer(64, HIDDEN, rng)
        self.second = Layer(HIDDEN, CLASSES, rng)
        self.hidden = cuda.device_array((BATCH, HIDDEN), np.float32)
        self.logits = cuda.device_array((BATCH, CLASSES), np.float32)
        self.d_hidden = cuda.device_array((BATCH, HIDDEN), np.float32)
        self.d_logits = cuda.device_array((BATCH, CLASSES), np.float32)
        self.loss = cuda.device_array(BATCH, np.float32)

    def step(self, pictures, labels, rate):
        """One batch. The only call that waits for the GPU is the copy of the loss."""
        self.first.forward(pictures, self.hidden, True)
        self.second.forward(self.hidden, self.logits, False)
        softmax_loss[1, 128](self.logits, labels, self.d_logits, self.loss)
        self.second.backward(self.hidden, self.d_logits)
        matmul[tiles(self.d_hidden.shape)](self.d_logits, self.second.weights, self.d_hidden, False, True)
        relu_backward[tiles(self.d_hidden.shape)](self.d_hidden, self.hidden)
        self.first.backward(pictures, self.d_hidden)
        self.first.step(rate)
        self.second.step(rate)
        return float(self.loss.copy_to_host().mean())

    def predict(self, pictures):
        hidden = cuda.device_array((len(pictures), HIDDEN), np.float32)
        logits = cuda.device_array((len(pictures), CLASSES), np.float32)
        self.first.forward(cuda.to_device(pictures), hidden, True)
        self.second.forward(hidden, logits, False)
        return logits.copy_to_host().argmax(axis=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--json", help="write the results to this file")
    options = parser.parse_args()

    digits = load_digits()
    rng = np.random.default_rng(7)
    order = rng.permutation(len(digits.data))
    pictures = (digits.data[order] / 16).astype(np.float32)
    labels = digits.target[order].astype(np.int32)
    split = 1437
    free, total = cuda.current_context().get_memory_info()
    print(f"GPU: {cuda.get_current_device().name}, memory {total / 2**20:.0f} MiB, free {free / 2**20:.0f} MiB")

    started = time.perf_counter()
    network = Network(rng)
    steps = 0
    for epoch in range(options.epochs):
        shuffled = rng.permutation(split)
        losses = []
        for start in range(0, split - BATCH + 1, BATCH):
            batch = shuffled[start : start + BATCH]
            losses.append(network.step(cuda.to_device(pictures[batch]), cuda.to_device(labels[batch]), np.float32(0.2)))
            steps += 1
        print(f"epoch {epoch + 1:2d}  loss {np.mean(losses):.4f}", flush=True)
    guesses = network.predict(pictures[split:])
    accuracy = float((guesses == labels[split:]).mean())
    seconds = time.perf_counter() - started
    print(f"test accuracy {accuracy:.4f} after {steps} steps in {seconds:.1f} s")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(
                {
                    "accuracy": accuracy,
                    "final_loss": losses[-1],
                    "seconds": seconds,
                    "steps": steps,
                    "memory_bytes": total,
                    "guesses": guesses.tolist(),
                },
                file,
            )


if __name__ == "__main__":
    main()
