"""Counts lines of code by purpose, and compares the tree with an older commit: `count_lines.py [COMMIT]`.

The product is the folders that a user installs or runs. Tests in Rust sources (`#[cfg(test)] mod`) count as tests, and
generated files are counted separately. Blank lines count too, because they are also read.
"""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PRODUCT: Final = ("operator/", "deviceplugin/", "remoting/", "offload/", "charts/", "crds/")
TESTS: Final = ("tests/", "e2e/", "offload/tests/", "remoting/fuzz/")
SUFFIXES: Final = (".py", ".rs", ".c", ".h", ".js", ".css", ".html", ".sh", ".yaml", ".yml", ".tpl", ".proto", ".toml")
_GENERATED: Final = re.compile(r"generated|_pb2|schema\.json|package-lock|REPORT")
_TESTS_OF_RUST: Final = re.compile(r"^#\[cfg\(test\)\]\nmod \w+ \{$.*\Z", re.MULTILINE | re.DOTALL)


def kind_of(path: str) -> str:
    """Returns the purpose as which a file's lines count."""
    if _GENERATED.search(path):
        return "generated"
    if path.startswith(TESTS) or "/tests/" in path:
        return "tests"
    return "product" if path.startswith(PRODUCT) else "tools, examples, CI"


def count(path: str, text: str) -> Counter[str]:
    """Returns the numbers of lines in one file, by purpose."""
    kind, lines = kind_of(path), text.count("\n")
    inside = 0
    if path.endswith(".rs") and kind == "product" and (found := _TESTS_OF_RUST.search(text)):
        inside = found[0].count("\n")
    return Counter({kind: lines - inside, "tests in Rust sources": inside})


def git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True).stdout


def counted(commit: str) -> Counter[str]:
    """Returns the numbers of lines in a commit, by purpose."""
    total: Counter[str] = Counter()
    names = [
        name for name in git("ls-tree", "-r", "--name-only", commit).decode().splitlines() if name.endswith(SUFFIXES)
    ]
    process = subprocess.run(
        ["git", "cat-file", "--batch"],
        cwd=ROOT,
        input="".join(f"{commit}:{name}\n" for name in names).encode(),
        check=True,
        capture_output=True,
    )
    at, answer = 0, process.stdout
    for name in names:
        end = answer.index(b"\n", at)
        size = int(answer[at:end].split()[2])
        total += count(name, answer[end + 1 : end + 1 + size].decode(errors="replace"))
        at = end + size + 2
    return total


def main() -> None:
    now = counted("HEAD")
    before = counted(sys.argv[1]) if len(sys.argv) > 1 else None
    for kind in sorted(now, key=now.__getitem__, reverse=True):
        change = "" if before is None else f"{now[kind] - before[kind]:+10,}"
        print(f"{kind:24}{now[kind]:10,}{change}")


if __name__ == "__main__":
    main()
