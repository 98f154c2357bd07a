"""Dr.Jit's CUDA back end: arithmetic, gradients, loops, textures, against NumPy."""

from __future__ import annotations

from collections.abc import Iterator

import cases
import drjit as dr
import numpy as np
from cases import Value
from drjit.cuda import Float, TensorXf, Texture2f, UInt32
from drjit.cuda.ad import Float as Differentiable

rng = np.random.default_rng(54)


def arithmetic() -> Iterator[Value]:
    a = rng.standard_normal(3000).astype(np.float32)
    x = Float(a)
    yield Value(
        np.array(dr.sin(x) * dr.exp(-x * x) + dr.fma(x, 2, 1)),
        np.sin(a.astype(float)) * np.exp(-(a.astype(float) ** 2)) + a * 2.0 + 1,
        1e-5,
    )
    yield Value(np.array(dr.sum(x))[0], a.astype(float).sum(), 1e-5)


def gathers_and_scatters() -> Iterator[Value]:
    a, index = rng.standard_normal(500).astype(np.float32), rng.integers(0, 500, 2000).astype(np.uint32)
    yield Value(np.array(dr.gather(Float, Float(a), UInt32(index))), a[index])
    bins = dr.zeros(UInt32, 500)
    dr.scatter_reduce(dr.ReduceOp.Add, bins, UInt32(1), UInt32(index))
    yield Value(np.array(bins).astype(np.int64), np.bincount(index, minlength=500))


def gradients() -> Iterator[Value]:
    a = rng.random(400).astype(np.float32) + 0.5
    x = Differentiable(a)
    dr.enable_grad(x)
    dr.backward(dr.sum(dr.log(x) * x))
    yield Value(np.array(dr.grad(x)), np.log(a.astype(float)) + 1, 1e-5)


def textures() -> Iterator[Value]:
    image = rng.random((8, 8, 1)).astype(np.float32)
    texture = Texture2f(TensorXf(image))
    centres = (np.arange(8) + 0.5) / 8
    v, u = np.meshgrid(centres, centres, indexing="ij")
    got = texture.eval([Float(u.ravel().astype(np.float32)), Float(v.ravel().astype(np.float32))])
    yield Value(np.array(got[0]), image.ravel(), 1e-5)


if __name__ == "__main__":
    cases.main(globals())
