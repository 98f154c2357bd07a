"""Rust modules are layers: no circle of more than three files, and no use of a module above one's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.rust_modules import circles, dependencies, read_crate

ROOT = Path(__file__).parents[2]
ROOTS = sorted(
    path for name in ("lib", "main") for at in ("remoting", "tools") for path in ROOT.glob(f"{at}/*/src/{name}.rs")
)
LARGEST_CIRCLE = 3
# The modules at the top of a crate, those that use others first. A module uses only modules behind its own, or beside
# it in one tuple.
LAYERS: dict[str, tuple[str | tuple[str, ...], ...]] = {
    "remoting/client": (
        *("nvml_generated", "nvml", "generated", "ending", "abi", "graphs", "copies", "launch", "call", "objects"),
        *("module", "memory", "devices", "session", "connect", "boundary", "program", "locks", "code"),
    ),
    "remoting/graphs": (
        *("conditional", "dot", "holding", "update", "within", "registry", "capture", "memories", "flat"),
        *("work", "graph", "memory", "user_object", "edge", "result"),
    ),
    "tools/recorder": (
        *("functions_generated", "stub", "mode", "record", "replay", "callbacks", "arrivals"),
        *("arguments", "below", "output", "copies", "names", "recording", "memory", "value", "threads"),
        *("registers", "signature"),
    ),
    "remoting/softgpu": (
        "api",
        "nvml",
        "driver",
        "work",
        "kernels",
        "streams",
        "memory",
        "process",
        "check",
        "engine",
        "ffi",
    ),
    # Parts of a session, each with its state below `Session` and what is done to it above.
    "remoting/worker": (
        "gateway",
        ("code", "copying", "generated", "memory", "moving", "order", "session"),
        *("turns", "io", "driver", "guard", "packets"),
    ),
}


def name_of(root: Path) -> str:
    return str(root.relative_to(ROOT))


def test_circles_are_found(tmp_path: Path) -> None:
    files = {
        "lib.rs": "pub mod one;\nmod two;\npub use two::Deep;\n",
        "one.rs": 'use crate::Deep; // crate::two::Other\nconst TEXT: &str = "crate::two::f";\n'
        "#[cfg(test)]\nmod tests { use super::super::two::f; }",
        "two/mod.rs": "mod deep;\npub use deep::{Deep, g as f};\npub fn h() { crate::one::k() }\n",
        "two/deep.rs": "pub struct Deep; pub fn g() { super::h() }\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    needs = dependencies(read_crate(tmp_path / "lib.rs"))
    named = {str(k.relative_to(tmp_path)): {str(v.relative_to(tmp_path)) for v in needs[k]} for k in needs}
    assert named == {
        "lib.rs": {"one.rs", "two/mod.rs", "two/deep.rs"},
        "one.rs": {"two/deep.rs"},
        "two/mod.rs": {"two/deep.rs", "one.rs"},
        "two/deep.rs": {"two/mod.rs"},
    }
    (circle,) = circles(needs)
    assert {path.name for path in circle} == {"one.rs", "mod.rs", "deep.rs"}


@pytest.mark.parametrize("root", ROOTS, ids=name_of)
def test_no_large_circle(root: Path) -> None:
    found = circles(dependencies(read_crate(root)))
    largest = len(found[0]) if found else 0
    assert largest <= LARGEST_CIRCLE, sorted(name_of(path) for path in found[0])


@pytest.mark.parametrize("crate", sorted(LAYERS))
def test_modules_use_only_those_below(crate: str) -> None:
    root = read_crate(ROOT / crate / "src" / "lib.rs")
    layers = [(layer,) if isinstance(layer, str) else layer for layer in LAYERS[crate]]
    height = {name: -place for place, layer in enumerate(layers) for name in layer}
    assert sorted(name for layer in layers for name in layer) == sorted(root.children)
    belongs = {file.file: name for name, module in root.children.items() for file in module.all()}
    upward = {
        f"{name_of(file)} uses {name_of(other)}"
        for file, others in dependencies(root).items()
        for other in others
        if file in belongs and other in belongs and height[belongs[other]] > height[belongs[file]]
    }
    assert not upward
