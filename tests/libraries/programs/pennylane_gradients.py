"""PennyLane's lightning.gpu against default.qubit: states, expectations, and gradients by the adjoint method."""

from __future__ import annotations

from collections.abc import Iterator

import cases
import numpy as np
import pennylane as qml
from cases import Value
from pennylane import numpy as pnp

rng = np.random.default_rng(53)
WIRES, LAYERS = 6, 3
WEIGHTS = rng.uniform(0, 2 * np.pi, (LAYERS, WIRES, 3))


def body(weights: object) -> None:
    qml.StronglyEntanglingLayers(weights, wires=range(WIRES))


def devices() -> tuple[object, object]:
    return qml.device("lightning.gpu", wires=WIRES), qml.device("default.qubit", wires=WIRES)


def states() -> Iterator[Value]:
    def circuit(weights: object) -> object:
        body(weights)
        return qml.state()

    gpu, cpu = (np.asarray(qml.QNode(circuit, device)(WEIGHTS)) for device in devices())
    yield Value(gpu, cpu, 1e-12)


def expectations() -> Iterator[Value]:
    def circuit(weights: object) -> object:
        body(weights)
        return [qml.expval(qml.PauliZ(0)), qml.expval(qml.PauliX(1) @ qml.PauliY(2)), qml.probs(wires=[0, 3])]

    gpu, cpu = (qml.QNode(circuit, device)(WEIGHTS) for device in devices())
    for one, other in zip(gpu, cpu, strict=True):
        yield Value(np.asarray(one), np.asarray(other), 1e-12)


def gradients() -> Iterator[Value]:
    def circuit(weights: object) -> object:
        body(weights)
        return qml.expval(qml.PauliZ(0) @ qml.PauliZ(1))

    gpu, cpu = devices()
    weights = pnp.array(WEIGHTS, requires_grad=True)
    by_adjoint = qml.grad(qml.QNode(circuit, gpu, diff_method="adjoint"))(weights)
    exact = qml.grad(qml.QNode(circuit, cpu, diff_method="backprop"))(weights)
    yield Value(np.asarray(by_adjoint), np.asarray(exact), 1e-12)


if __name__ == "__main__":
    cases.main(globals())
