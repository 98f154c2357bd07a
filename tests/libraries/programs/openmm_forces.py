"""OpenMM's CUDA platform against its Reference platform: energies and forces of single states, and steps."""

from __future__ import annotations

from collections.abc import Iterator

import cases
import numpy as np
import openmm as mm
from cases import Value
from openmm import unit

rng = np.random.default_rng(45)
SIDE, COUNT = 3.0, 6
FORCE = unit.kilojoule_per_mole / unit.nanometer


def system() -> tuple[mm.System, np.ndarray]:
    """A charged lattice, shaken, in a periodic box."""
    made = mm.System()
    made.setDefaultPeriodicBoxVectors(mm.Vec3(SIDE, 0, 0), mm.Vec3(0, SIDE, 0), mm.Vec3(0, 0, SIDE))
    grid = np.stack(np.meshgrid(*[np.arange(COUNT)] * 3), -1).reshape(-1, 3) * (SIDE / COUNT)
    for _ in grid:
        made.addParticle(20.0)
    return made, grid + rng.uniform(-0.05, 0.05, grid.shape)


def nonbonded(method: int, count: int) -> mm.NonbondedForce:
    force = mm.NonbondedForce()
    force.setNonbondedMethod(method)
    force.setCutoffDistance(0.9)
    for index in range(count):
        force.addParticle(0.5 if index % 2 else -0.5, 0.25, 0.6)
    return force


def both(made: mm.System, positions: np.ndarray, within: float, steps: int = 0) -> Iterator[Value]:
    found = {}
    for name, options in (("CUDA", {"Precision": "mixed", "DeterministicForces": "true"}), ("Reference", {})):
        platform = mm.Platform.getPlatformByName(name)
        context = mm.Context(made, mm.VerletIntegrator(0.001), platform, options)
        context.setPositions(positions)
        if steps:
            context.getIntegrator().step(steps)
        state = context.getState(getEnergy=True, getForces=True, getPositions=True)
        found[name] = (
            np.float64(state.getPotentialEnergy().value_in_unit(unit.kilojoule_per_mole)),
            np.array(state.getForces(asNumpy=True).value_in_unit(FORCE)),
            np.array(state.getPositions(asNumpy=True).value_in_unit(unit.nanometer)),
        )
    for gpu, reference in zip(found["CUDA"], found["Reference"], strict=True):
        yield Value(gpu, reference, within)


def particle_mesh_ewald() -> Iterator[Value]:
    made, positions = system()
    made.addForce(nonbonded(mm.NonbondedForce.PME, len(positions)))
    yield from both(made, positions, 2e-4)


def bonds_and_angles() -> Iterator[Value]:
    made, positions = system()
    bonds, angles, torsions = mm.HarmonicBondForce(), mm.HarmonicAngleForce(), mm.PeriodicTorsionForce()
    for i in range(len(positions) - 3):
        bonds.addBond(i, i + 1, 0.4, 500)
        angles.addAngle(i, i + 1, i + 2, 1.9, 40)
        torsions.addTorsion(i, i + 1, i + 2, i + 3, 3, 0.5, 4)
    for force in (bonds, angles, torsions):
        made.addForce(force)
    yield from both(made, positions, 2e-4)


def a_force_of_the_program_s_own() -> Iterator[Value]:
    """Compiled at run time from an expression."""
    made, positions = system()
    force = mm.CustomNonbondedForce("a*exp(-b*r)-c/(r^4+0.1); a=1200; b=12; c=0.02")
    force.setNonbondedMethod(mm.CustomNonbondedForce.CutoffPeriodic)
    force.setCutoffDistance(0.9)
    for _ in positions:
        force.addParticle([])
    made.addForce(force)
    yield from both(made, positions, 1e-4)


def implicit_solvent() -> Iterator[Value]:
    made, positions = system()
    force = mm.GBSAOBCForce()
    for index in range(len(positions)):
        force.addParticle(0.5 if index % 2 else -0.5, 0.15, 0.8)
    made.addForce(force)
    yield from both(made, positions, 1e-4)


def steps() -> Iterator[Value]:
    made, positions = system()
    made.addForce(nonbonded(mm.NonbondedForce.CutoffPeriodic, len(positions)))
    yield from both(made, positions, 1e-3, steps=20)


if __name__ == "__main__":
    cases.main(globals())
