"""DALI's GPU operators against NumPy: arithmetic, transpositions, crops and flips, reductions, normalisation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import cases
import numpy as np
from cases import Value
from nvidia.dali import fn, pipeline_def, types

rng = np.random.default_rng(58)
BATCH = 4
IMAGES = [rng.integers(0, 256, (24, 32, 3), np.uint8) for _ in range(BATCH)]


def through(graph: Callable[[object], object]) -> list[np.ndarray]:
    """Runs a pipeline of this graph on the images. Returns its output."""

    @pipeline_def(batch_size=BATCH, num_threads=1, device_id=0, seed=3)
    def pipeline() -> object:
        return graph(fn.external_source(source=[IMAGES], cycle=True, device="gpu"))

    made = pipeline()
    made.build()
    # The second batch comes while the first is held.
    first, second = made.run()[0], made.run()[0]
    arrays = [np.array(first.as_cpu().at(index)) for index in range(BATCH)]
    again = [np.array(second.as_cpu().at(index)) for index in range(BATCH)]
    for one, other in zip(arrays, again, strict=True):
        np.testing.assert_array_equal(one, other)
    return arrays


def compared(graph: Callable, numpy: Callable[[np.ndarray], np.ndarray], within: float = 0.0) -> Iterator[Value]:
    for got, image in zip(through(graph), IMAGES, strict=True):
        yield Value(got, numpy(image), within)


def arithmetic() -> Iterator[Value]:
    yield from compared(lambda x: fn.cast(x, dtype=types.FLOAT) * 0.5 + 3.0, lambda x: x * np.float32(0.5) + 3, 1e-6)
    yield from compared(lambda x: (x > 100) | (x < 20), lambda x: (x > 100) | (x < 20))


def transpositions() -> Iterator[Value]:
    yield from compared(lambda x: fn.transpose(x, perm=[2, 0, 1]), lambda x: x.transpose(2, 0, 1))
    yield from compared(lambda x: fn.transpose(x, perm=[1, 0, 2]), lambda x: x.transpose(1, 0, 2))


def crops_and_flips() -> Iterator[Value]:
    yield from compared(lambda x: fn.slice(x, (2, 5), (16, 20), axes=(0, 1)), lambda x: x[2:18, 5:25])
    yield from compared(lambda x: fn.flip(x, horizontal=1, vertical=1), lambda x: x[::-1, ::-1])


def reductions() -> Iterator[Value]:
    yield from compared(lambda x: fn.reductions.sum(x, dtype=types.UINT64), lambda x: x.sum(dtype=np.uint64))
    yield from compared(lambda x: fn.reductions.max(x, axes=(0, 1)), lambda x: x.max((0, 1)))
    yield from compared(lambda x: fn.reductions.mean(fn.cast(x, dtype=types.FLOAT), axes=0), lambda x: x.mean(0), 1e-6)


def normalised() -> Iterator[Value]:
    mean, deviation = [120.0, 110.0, 100.0], [60.0, 50.0, 40.0]
    yield from compared(
        lambda x: fn.crop_mirror_normalize(
            fn.reshape(x, layout="HWC"), dtype=types.FLOAT, output_layout="CHW", mean=mean, std=deviation, mirror=1
        ),
        lambda x: ((x[:, ::-1] - np.array(mean)) / np.array(deviation)).transpose(2, 0, 1),
        1e-6,
    )


if __name__ == "__main__":
    cases.main(globals())
