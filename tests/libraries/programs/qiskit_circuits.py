"""Qiskit Aer on the GPU against its CPU simulator, and against NumPy."""

from __future__ import annotations

from collections.abc import Iterator

import cases
import numpy as np
from cases import Value
from qiskit import QuantumCircuit, transpile
from qiskit.circuit.library import QFT
from qiskit_aer import AerSimulator

rng = np.random.default_rng(50)


def random_circuit(width: int, depth: int) -> QuantumCircuit:
    made = QuantumCircuit(width)
    for _ in range(depth):
        for qubit in range(width):
            made.u(*rng.uniform(0, 2 * np.pi, 3), qubit)
        first, second, third = rng.permutation(width)[:3]
        made.cx(first, second)
        made.ccx(first, second, third)
        made.rzz(rng.uniform(), second, third)
    return made


def result(circuit: QuantumCircuit, device: str, method: str = "statevector", **options: object) -> object:
    simulator = AerSimulator(method=method, device=device, **options)
    done = simulator.run(transpile(circuit, simulator, optimization_level=0), shots=2000, seed_simulator=11).result()
    if not done.success:
        raise RuntimeError(done.status)
    return done


def states() -> Iterator[Value]:
    circuit = random_circuit(9, 6)
    circuit.save_statevector()
    gpu, cpu = (np.asarray(result(circuit, device).get_statevector()) for device in ("GPU", "CPU"))
    yield Value(gpu, cpu, 1e-12)


def fourier_transform() -> Iterator[Value]:
    """The transform of a basis state, which NumPy knows."""
    circuit = QuantumCircuit(6)
    circuit.x([0, 2, 3])
    circuit.append(QFT(6), range(6))
    circuit.save_statevector()
    want = np.exp(2j * np.pi * 13 * np.arange(64) / 64) / 8
    yield Value(np.asarray(result(circuit, "GPU").get_statevector()), want, 1e-12)


def unitary() -> Iterator[Value]:
    circuit = random_circuit(5, 4)
    circuit.save_unitary()
    gpu, cpu = (np.asarray(result(circuit, device, "unitary").get_unitary()) for device in ("GPU", "CPU"))
    yield Value(gpu, cpu, 1e-12)


def counts() -> Iterator[Value]:
    circuit = random_circuit(6, 4)
    circuit.measure_all()
    gpu, cpu = (result(circuit, device).get_counts() for device in ("GPU", "CPU"))
    names = sorted(gpu | cpu)
    yield Value(np.array([gpu.get(name, 0) for name in names]), np.array([cpu.get(name, 0) for name in names]))


if __name__ == "__main__":
    cases.main(globals())
