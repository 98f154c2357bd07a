"""Runs a notebook cell in an acceptor: finds the names that must be sent and those that are sent back.

`run` is the acceptor's half.
"""

import ast
import builtins
import contextlib
import importlib
import linecache
import symtable
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

_DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)


@dataclass(frozen=True, slots=True)
class Names:
    """The names that a cell reads and writes, in alphabetical order.

    Names that the cell defines or imports are not in `writes`: both ends execute definitions and imports.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]


def names_of(source: str) -> Names:
    """Returns the names of the notebook that a cell may read, and those that it assigns. Raises SyntaxError."""
    tree = ast.parse(source)
    table = symtable.symtable(source, "<cell>", "exec")
    defined = {name for statement in tree.body for name in _defined(statement)}
    reads = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()}
    # For the symbol table, `a += 1` is only an assignment.
    reads |= {
        node.target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    }
    reads |= {symbol.get_name() for child in _below(table) for symbol in child.get_symbols() if symbol.is_global()}
    writes = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    writes |= {
        symbol.get_name()
        for child in _below(table)
        for symbol in child.get_symbols()
        if symbol.is_declared_global() and symbol.is_assigned()
    }
    # The notebook also gets objects that the cell changes in place.
    writes |= _changed(tree)
    return Names(tuple(sorted(reads - set(dir(builtins)))), tuple(sorted(writes - defined)))


def definitions(source: str) -> str:
    """Returns the cell's definitions of functions and classes, and its imports, which the notebook also executes."""
    kept = [statement for statement in ast.parse(source).body if isinstance(statement, _DEFINITIONS)]
    return "\n".join(ast.unparse(statement) for statement in kept)


def split(values: Mapping[str, Any], reads: Iterable[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the notebook's values that a cell reads, and separately the names of the modules among them."""
    found = {name: values[name] for name in reads if name in values}
    modules = {name: value.__name__ for name, value in found.items() if isinstance(value, type(builtins))}
    return {name: value for name, value in found.items() if name not in modules}, modules


def run(
    source: str, file: str, values: dict[str, Any], modules: dict[str, str], wanted: tuple[str, ...]
) -> tuple[dict[str, Any], Any]:
    """Runs a cell. Returns the values of the wanted names that exist afterwards, and the value of its last line.

    `file` is the cell's name in tracebacks. Raises the cell's exceptions.
    """
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope: dict[str, Any] = {"__name__": "__main__", **values}
    for name, module in modules.items():
        scope[name] = importlib.import_module(module)
    tree = ast.parse(source, file)
    last: Any = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        expression = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
        exec(compile(tree, file, "exec"), scope)  # noqa: S102 (the user's cell)
        last = eval(compile(expression, file, "eval"), scope)  # noqa: S307
    else:
        exec(compile(tree, file, "exec"), scope)  # noqa: S102
    return {name: scope[name] for name in wanted if name in scope}, last


def define(source: str, scope: dict[str, Any]) -> None:
    """Executes a cell's definitions and imports here. Skips imports that work only in the acceptor."""
    for statement in ast.parse(definitions(source)).body:
        with contextlib.suppress(ImportError):
            exec(compile(ast.Module([statement], []), "<cell>", "exec"), scope)  # noqa: S102


def _defined(statement: ast.stmt) -> Iterable[str]:
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.partition(".")[0] for alias in statement.names]
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    return ()


def _below(table: symtable.SymbolTable) -> Iterable[symtable.SymbolTable]:
    for child in table.get_children():
        yield child
        yield from _below(child)


def _changed(tree: ast.Module) -> set[str]:
    """Returns the names of objects into which the cell assigns: `a[0] = 1`, `a.b = 1`, `del a[0]`."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            place: ast.expr = node
            while isinstance(place, ast.Subscript | ast.Attribute):
                place = place.value
            if isinstance(place, ast.Name):
                found.add(place.id)
    return found
