"""Finds dependencies between the source files of a Rust crate, from `use`, `mod` and paths, and cycles of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_NOISE: Final = re.compile(
    r'//[^\n]*|/\*.*?\*/|\bb?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?\'(?:\\[^\']+|[^\'\\])\'', re.DOTALL
)
_TEST_ITEM: Final = re.compile(r"#\[cfg\((?:all\()?test[^\]]*\)\]\s*(?:#\[[^\]]*\]\s*)*")
_MOD: Final = re.compile(r"\bmod\s+(?:r#)?(\w+)\s*;")
_USE: Final = re.compile(r"\buse\s+([^;]+);")
_ITEM: Final = re.compile(
    r"\b(?:fn|struct|enum|union|trait|type|const|static|mod)\s+(?:mut\s+)?(\w+)|\bmacro_rules!\s*(\w+)"
)
_PATH: Final = re.compile(r"(?<![\w:.'])(\w+(?:::\w+)+)")
_ROOTS: Final = ("lib.rs", "main.rs")


@dataclass(slots=True)
class Module:
    """One source file: its child modules, the names that it defines, and the paths that it imports and writes."""

    file: Path
    parent: Module | None
    children: dict[str, Module] = field(default_factory=dict)
    defined: set[str] = field(default_factory=set)
    # The path that each imported name stands for.
    imports: dict[str, list[str]] = field(default_factory=dict)
    globs: list[list[str]] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)

    def root(self) -> Module:
        return self if self.parent is None else self.parent.root()

    def all(self) -> Iterator[Module]:
        yield self
        for child in self.children.values():
            yield from child.all()


def without_noise(text: str) -> str:
    """Returns the code without comments, without the contents of strings, and without items under `#[cfg(test)]`."""
    text = _NOISE.sub(lambda found: '""' if "'" in found[0][:2] or '"' in found[0][:3] else " ", text)
    while found := _TEST_ITEM.search(text):
        text = text[: found.start()] + text[_end_of_item(text, found.end()) :]
    return text


def _end_of_item(text: str, start: int) -> int:
    depth = 0
    for place in range(start, len(text)):
        if text[place] in "{([":
            depth += 1
        elif text[place] in "})]":
            depth -= 1
            if depth == 0 and text[place] == "}":
                return place + 1
            if depth < 0:
                return place
        elif depth == 0 and text[place] in ";,":
            return place + 1
    return len(text)


def read_crate(root: Path) -> Module:
    """Reads the modules of a crate from its `lib.rs` or `main.rs`. Raises FileNotFoundError if a module has no file."""
    return _read(root, None)


def _read(file: Path, parent: Module | None) -> Module:
    text = without_noise(file.read_text())
    module = Module(file, parent)
    for found in _ITEM.finditer(text):
        module.defined.add(found[1] or found[2])
    for found in _USE.finditer(text):
        for path, name in _use_tree(re.sub(r"\s+", " ", found[1]).strip()):
            if name == "*":
                module.globs.append(path)
            else:
                module.imports[name] = path
    module.paths = set(_PATH.findall(_USE.sub("", text)))
    folder = file.parent if file.name in (*_ROOTS, "mod.rs") else file.with_suffix("")
    for found in _MOD.finditer(text):
        name = found[1]
        inside = [path for path in (folder / f"{name}.rs", folder / name / "mod.rs") if path.exists()]
        if not inside:
            raise FileNotFoundError(f"{file} declares module {name}, which has no file in {folder}")
        module.children[name] = _read(inside[0], module)
    return module


def _use_tree(text: str, before: tuple[str, ...] = ()) -> Iterator[tuple[list[str], str]]:
    """Yields each path of a `use` with its local name; `*` means all names."""
    text = text.strip()
    if "{" in text:
        head, inside = text.split("{", 1)
        inside = inside.rstrip().removesuffix("}")
        start = (*before, *[part.strip() for part in head.split("::") if part.strip()])
        depth, last = 0, 0
        for place, char in enumerate(inside + ","):
            depth += {"{": 1, "}": -1}.get(char, 0)
            if char == "," and depth == 0:
                if inside[last:place].strip():
                    yield from _use_tree(inside[last:place], start)
                last = place + 1
        return
    path, _, alias = text.partition(" as ")
    parts = [*before, *[part.strip() for part in path.split("::") if part.strip()]]
    if parts[-1] == "self" and len(parts) > 1:
        parts.pop()
    if parts[-1] == "*":
        yield parts[:-1], "*"
    else:
        yield parts, alias.strip() or parts[-1]


def resolve(module: Module, path: list[str], seen: frozenset[tuple[Path, str]] = frozenset()) -> Module | None:
    """Returns the module that defines the item at a path in `module`, through re-exports; None for other crates."""
    first, *rest = path
    if first == "crate":
        at: Module | None = module.root()
    elif first == "self":
        at = module
    elif first == "super":
        at = module.parent
    else:
        at = _find(module, first, seen)
        if at is None or first in module.defined - module.children.keys():
            return at
    for name in rest:
        if at is None:
            return None
        if name == "super":
            at = at.parent
            continue
        if name not in at.children and name in at.defined:
            return at
        found = _find(at, name, seen)
        if found is None:
            # The name comes from a macro, or is a variant of the item found before.
            return at
        at = found
    return at


def _find(module: Module, name: str, seen: frozenset[tuple[Path, str]]) -> Module | None:
    key = (module.file, name)
    if key in seen:
        return None
    seen = seen | {key}
    if name in module.children:
        return module.children[name]
    if name in module.defined:
        return module
    if name in module.imports and module.imports[name] != [name]:
        return resolve(module, module.imports[name], seen)
    for glob in module.globs:
        inside = resolve(module, glob, seen)
        if inside is not None and inside is not module and (found := _find(inside, name, seen)) is not None:
            return found
    return None


def dependencies(root: Module) -> dict[Path, set[Path]]:
    """Returns for each file the files that it declares by `mod`, or that define items of its `use` and its paths."""
    found: dict[Path, set[Path]] = {}
    for module in root.all():
        needs = {child.file for child in module.children.values()}
        paths = [*module.imports.values(), *module.globs, *[path.split("::") for path in module.paths]]
        for path in paths:
            if (defines := resolve(module, path)) is not None:
                needs.add(defines.file)
        found[module.file] = needs - {module.file}
    return found


def circles(graph: dict[Path, set[Path]]) -> list[set[Path]]:
    """Returns the sets of two or more files that depend on each other, the largest first."""
    reached = {file: _reached(graph, file) for file in graph}
    # A file in a circle reaches itself.
    found = {frozenset(other for other in reached[file] if file in reached[other]) for file in graph}
    return sorted((set(circle) for circle in found if len(circle) > 1), key=len, reverse=True)


def _reached(graph: dict[Path, set[Path]], start: Path) -> set[Path]:
    """Returns the files that a file depends on, directly or through others."""
    reached: set[Path] = set()
    ahead = [start]
    while ahead:
        new = graph[ahead.pop()] - reached
        reached |= new
        ahead += new
    return reached
