"""Checks docstrings and comments of the code for the same words as rumdl checks the Markdown: `make prose`.

A docstring, and a doc comment of Rust, must begin with a verb or a noun phrase. No docstring or comment may have a word
that .rumdl.toml (MD061) lists.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
CLAUSES: Final = {"What", "Who", "Whose", "Of", "As", "Has", "Have", "Where", "Those"}
# Listed words that are usual in a field, and the folders that may use them for threads of a warp.
FIELD_WORDS: Final = {"lane": ("remoting/softgpu/", "tools/bench/src/softgpu/", "tests/softgpu/", "tests/programs/")}
_RUST_COMMENT: Final = re.compile(r"^\s*(//[/!]?)(?!/)\s?(.*)$")


@dataclass(frozen=True, slots=True)
class Text:
    """A docstring or a comment, and its first line's number."""

    line: int
    words: str
    documents: bool


def texts_of_python(source: str) -> Iterator[Text]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            words = ast.get_docstring(node)
            if words is not None:
                yield Text(node.body[0].lineno, words, documents=True)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text(token.start[0], token.string.lstrip("# "), documents=False)


def texts_of_rust(source: str) -> Iterator[Text]:
    """Yields blocks of comment lines. Consecutive lines of the same kind are one text."""
    kind, first, block = "", 0, [""]
    for number, line in enumerate([*source.splitlines(), ""], 1):
        found = _RUST_COMMENT.match(line)
        if found is not None and found[1] == kind:
            block.append(found[2])
            continue
        if kind:
            yield Text(first, "\n".join(block), documents=kind != "//")
        kind, first, block = (found[1], number, [found[2]]) if found is not None else ("", 0, [])


def complaints(path: str, source: str, terms: re.Pattern[str]) -> Iterator[str]:
    """Yields a message for each text of a file that breaks a rule."""
    for text in texts_of_rust(source) if path.endswith(".rs") else texts_of_python(source):
        first = re.match(r"\W*(\w+)", text.words)
        if text.documents and first is not None and first[1] in CLAUSES:
            yield f"{path}:{text.line}: begins with {first[1]!r}: begin with a verb or a noun phrase"
        for found in terms.finditer(text.words):
            word = found[0].lower().rstrip("s")
            if not path.startswith(FIELD_WORDS.get(word, ())):
                yield f"{path}:{text.line}: {found[0]!r}: .rumdl.toml lists it; docs/glossary.md has better words"


def terms() -> re.Pattern[str]:
    """Returns a pattern for the words that .rumdl.toml lists, as whole words in any case."""
    listed = tomllib.loads((ROOT / ".rumdl.toml").read_text())["MD061"]["terms"]
    return re.compile(r"\b(?:" + "|".join(map(re.escape, listed)) + r")\b", re.IGNORECASE)


def main() -> int:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py", "*.rs"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    pattern = terms()
    files = [name for name in listing.stdout.splitlines() if (ROOT / name).exists()]
    found = [line for name in files for line in complaints(name, (ROOT / name).read_text(), pattern)]
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
