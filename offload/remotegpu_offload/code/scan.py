"""Finds the modules that a source imports, without running it. Pure."""

import ast
from collections.abc import Iterator


def related(source: bytes, package: str) -> list[str]:
    """Returns the absolute names of the modules that this source may import, in order of appearance, each once.

    `package` is the package of relative imports ("" outside of packages). `from a import b` yields `a` and `a.b`; the
    second may be an attribute and not a module. Imports under `if TYPE_CHECKING:` are left out. A source that Python
    cannot parse yields nothing: the importer will report the error.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return list(dict.fromkeys(name for node in _statements(tree) for name in _names(node, package)))


def parents(name: str) -> list[str]:
    """Returns the packages that contain a module, outermost first: "a" and "a.b" for "a.b.c"."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _statements(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    waiting: list[ast.AST] = [tree]
    found = []
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
        elif isinstance(node, ast.If) and _for_type_checkers(node.test):
            waiting += node.orelse
        elif isinstance(node, ast.stmt | ast.Module | ast.excepthandler | ast.match_case):
            waiting += ast.iter_child_nodes(node)
    yield from sorted(found, key=lambda node: (node.lineno, node.col_offset))


def _for_type_checkers(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else test.id if isinstance(test, ast.Name) else ""
    return name == "TYPE_CHECKING"


def _names(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield from parents(alias.name)
            yield alias.name
        return
    base = node.module or ""
    if node.level:
        around = package.split(".") if package else []
        if node.level > len(around):
            return
        around = around[: len(around) - node.level + 1]
        base = ".".join([*around, base] if base else around)
    yield from parents(base)
    yield base
    for alias in node.names:
        if alias.name != "*":
            yield f"{base}.{alias.name}"
