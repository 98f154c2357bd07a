"""Programs of frameworks in an acceptor (program mode): the same numbers, and their files on the client's disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from offload_programs import Project, same

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(300)]


def test_a_jax_program_runs_in_an_acceptor_as_locally(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    project = Project(tmp_path, "gradients")
    (project.folder / "data").mkdir()
    generator = np.random.default_rng(1)
    x = generator.normal(size=(200, 5)).astype(np.float32)
    np.savez(project.folder / "data/points.npz", x=x, y=(x.sum(axis=1) > 0).astype(np.float32))
    (project.folder / "out").mkdir()
    local = project.local("main.py")
    assert local.returncode == 0, local.stderr
    weights = project.take("out")
    (project.folder / "out").mkdir()
    same(local, project.offloaded("main.py"))
    assert project.files("out") == weights


def test_a_torch_program_saves_its_checkpoint_here(tmp_path: Path) -> None:
    project = Project(tmp_path, "checkpoint")
    (project.folder / "out").mkdir()
    local = project.local("main.py")
    assert local.returncode == 0, local.stderr
    expected = torch.load(project.folder / "out/model.pt")
    project.take("out")
    (project.folder / "out").mkdir()
    same(local, project.offloaded("main.py"))
    found = torch.load(project.folder / "out/model.pt")
    assert all(torch.equal(found["model"][name], value) for name, value in expected["model"].items())
