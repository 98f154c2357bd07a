"""ASTRA: projections on the GPU, their adjoints, and a reconstruction, against its CPU projector and closed forms."""

from __future__ import annotations

from collections.abc import Iterator

import astra
import cases
import numpy as np
from cases import Value

SIZE, ANGLES = 48, np.linspace(0, np.pi, 40, endpoint=False)
rng = np.random.default_rng(51)
ACROSS, DOWN = np.meshgrid(np.arange(SIZE) - SIZE / 2 + 0.5, np.arange(SIZE) - SIZE / 2 + 0.5)
DISC = ((ACROSS**2 + DOWN**2) < 15**2).astype(np.float32)
VOLUME = astra.create_vol_geom(SIZE, SIZE)
RAYS = astra.create_proj_geom("parallel", 1.0, 72, ANGLES)


def project(image: np.ndarray, kind: str) -> np.ndarray:
    projector = astra.create_projector(kind, RAYS, VOLUME)
    number, made = astra.create_sino(image, projector)
    astra.data2d.delete(number)
    astra.projector.delete(projector)
    return made


def back_project(rays: np.ndarray) -> np.ndarray:
    projector = astra.create_projector("cuda", RAYS, VOLUME)
    number, made = astra.create_backprojection(rays, projector)
    astra.data2d.delete(number)
    astra.projector.delete(projector)
    return made


def as_on_the_cpu() -> Iterator[Value]:
    """Both interpolate linearly; the GPU's textures do so with 8 bits."""
    smooth = np.exp(-(ACROSS**2 + (DOWN - 5) ** 2) / 90).astype(np.float32)
    yield Value(project(smooth, "cuda"), project(smooth, "linear"), 5e-3)


def a_disc_from_every_side() -> Iterator[Value]:
    """Each projection of an image has its sum, and that of a disc is the length of the chord."""
    made = project(DISC, "cuda")
    yield Value(made.sum(1), np.full(len(ANGLES), DISC.sum()), 5e-3)
    position = np.arange(72) - 35.5
    chord = 2 * np.sqrt(np.maximum(15**2 - position**2, 0))
    yield Value(made.mean(0), chord, 6e-2)


def adjoint() -> Iterator[Value]:
    """The product of a projection with rays is that of the image with the rays' back projection."""
    image, rays = rng.random((SIZE, SIZE), np.float32), rng.random((len(ANGLES), 72), np.float32)
    yield Value(np.float64((project(image, "cuda") * rays).sum()), (image * back_project(rays)).sum(), 5e-3)


def reconstruction() -> Iterator[Value]:
    rays = project(DISC, "linear")
    inputs, output = astra.data2d.create("-sino", RAYS, rays), astra.data2d.create("-vol", VOLUME)
    options = astra.astra_dict("SIRT_CUDA") | {"ProjectionDataId": inputs, "ReconstructionDataId": output}
    algorithm = astra.algorithm.create(options)
    astra.algorithm.run(algorithm, 150)
    made = astra.data2d.get(output)
    yield Value(
        np.round(np.clip(made, 0, 1))[abs(np.hypot(ACROSS, DOWN) - 15) > 1.5],
        DISC[abs(np.hypot(ACROSS, DOWN) - 15) > 1.5],
    )


if __name__ == "__main__":
    cases.main(globals())
