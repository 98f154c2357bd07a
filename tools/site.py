"""Stages the repository's Markdown and pictures for the site: target/site-source, with the repository's own paths.

python tools/site.py [FOLDER] (`make docs`)

A link to a folder becomes one to its README.md. For a link to any other file, that file is copied too. Therefore
MkDocs, which fails on a link without a target, checks all links.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")


def files() -> list[Path]:
    """Returns the Markdown files and pictures that git tracks or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md", "docs/*.svg", "docs/*.json"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    return [Path(each) for each in listed if (ROOT / each).is_file()]


def staged(page: Path, source: Path, target: Path) -> str:
    """Returns the page's text. Copies linked files that are not Markdown."""

    def link(found: re.Match[str]) -> str:
        before, to, after = found.groups()
        if "://" in to or to.startswith("mailto:"):
            return found.group()
        place = (source / page.parent / to).resolve()
        if place.is_dir() and (place / "README.md").is_file():
            return f"{before}{to.rstrip('/')}/README.md{after}"
        if place.is_file() and place.suffix != ".md" and place.is_relative_to(source):
            copy = target / place.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(place, copy)
        return found.group()

    return LINK.sub(link, (source / page).read_text())


def stage(source: Path, pages: list[Path], target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    for each in pages:
        place = target / each
        place.parent.mkdir(parents=True, exist_ok=True)
        if each.suffix == ".md":
            place.write_text(staged(each, source, target))
        else:
            shutil.copyfile(source / each, place)


def main() -> None:
    stage(ROOT, files(), Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "target" / "site-source")


if __name__ == "__main__":
    main()
