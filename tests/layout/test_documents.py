"""The documents show the tools' current output, and the checks of the documents find planted errors."""

import hashlib
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
LEDGER = ROOT / "docs" / "figures" / "ledger.svg"


@pytest.mark.parametrize("source", [pytest.param(path, id=path.stem) for path in sorted(PICTURES.glob("*.dot"))])
def test_a_picture_is_made_from_its_source(source: Path) -> None:
    """Fix: run `make pictures`."""
    made = re.search(r"sha256:([0-9a-f]{64})", source.with_suffix(".svg").read_text())
    assert made is not None
    assert made[1] == hashlib.sha256(source.read_bytes()).hexdigest()


def test_the_picture_of_a_share_shows_a_quarter_of_eight_gibibytes() -> None:
    text = re.sub(r"<[^>]*>", "", (PICTURES / "nvidia-smi.svg").read_text()).replace("&#160;", " ")
    assert "$ remotegpu run -p 0.25 -- nvidia-smi" in text
    assert re.search(r"0MiB / +2048MiB", text)
    assert "http" not in text, "a page fetches nothing"


def test_the_published_plot_is_that_of_the_stored_runs(tmp_path: Path) -> None:
    """Fix: run `tools/ledger.py draw`."""
    ledger = runpy.run_path(str(ROOT / "tools" / "ledger.py"))
    ledger["draw"](ledger["runs"](ROOT / "benchmarks"), tmp_path / "ledger.svg")
    assert labels(tmp_path / "ledger.svg") == labels(LEDGER) > {"direct, split", "same host, split"}


def labels(plot: Path) -> set[str]:
    return set(re.findall(r"<text[^>]*>([^<]*)</text>", plot.read_text()))


def test_the_site_keeps_paths_and_takes_linked_files_along(tmp_path: Path) -> None:
    stage = runpy.run_path(str(ROOT / "tools" / "site.py"))["stage"]
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "docs").mkdir(parents=True)
    (source / "sample").mkdir()
    (source / "sample" / "README.md").write_text("# Sample\n")
    (source / "Makefile").write_text("all:\n")
    page = "[a](../sample) [b](../Makefile) [c](gone.py) [d](https://example.com/x) [e](other.md#part)\n"
    (source / "docs" / "page.md").write_text(page)
    stage(source, [Path("docs/page.md"), Path("sample/README.md")], target)
    assert (target / "docs" / "page.md").read_text() == page.replace("(../sample)", "(../sample/README.md)")
    assert (target / "Makefile").read_text() == "all:\n"
    assert not (target / "docs" / "gone.py").exists()


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("The door is open.", "MD061"),
        (f"{'word ' * 25}end.", "MD013"),
        ("See [that](gone.md).", "MD057"),
        ("See [that](#gone).", "MD051"),
        ("The gateway is open; its metric says `door`.", None),
    ],
)
def test_the_check_of_prose_finds(text: str, rule: str | None, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{text}\n")
    command = [
        str(Path(sys.executable).with_name("rumdl")),
        "check",
        "--no-cache",
        "--config",
        str(ROOT / ".rumdl.toml"),
    ]
    done = subprocess.run([*command, str(page)], capture_output=True, text=True, check=False)
    assert set(re.findall(r"MD\d{3}", done.stdout)) == ({rule} if rule else set())
    assert done.returncode == (1 if rule else 0)


def test_the_first_screen_leads_to_the_limits_and_the_figures() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 90
    first = "\n".join(lines[:12])
    assert "(docs/limitations.md)" in first
    assert "(docs/benchmarks.md)" in first


def test_the_glossary_is_short_and_sorted() -> None:
    rows = re.findall(r"^\| (?!term|-)([^|]*?) \|", (ROOT / "docs" / "glossary.md").read_text(), re.M)
    assert 0 < len(rows) <= 30
    assert rows == sorted(rows, key=str.casefold)


def test_every_file_that_the_architecture_and_the_decisions_name_exists() -> None:
    """By its last name: the text often leaves out the folders."""
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    files = {Path(line).name for line in listing.stdout.splitlines()}
    pages = [ROOT / "docs" / "architecture.md", *(ROOT / "docs" / "decisions").glob("*.md")]
    text = "\n".join(page.read_text() for page in pages)
    named = {Path(name).name for name in re.findall(r"`([\w./-]+\.(?:rs|py|yaml|toml|proto))`", text)}
    assert len(named) > 100
    assert named - files == set()


def test_decisions_are_numbered_and_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    pages = sorted(path for path in folder.glob("*.md") if path.name != "README.md")
    assert [path.name[:4] for path in pages] == [f"{number:03}-" for number in range(1, len(pages) + 1)]
    titles = [page.read_text().partition("\n")[0].removeprefix("# ") for page in pages]
    listed = re.findall(r"^\| \[(\d{3})\]\(([\w-]+\.md)\) \| (.+) \|$", (folder / "README.md").read_text(), re.M)
    assert [(name, f"{number} {title}") for number, name, title in listed] == list(
        zip([page.name for page in pages], titles, strict=True)
    )


def test_where_to_change_what_is_short() -> None:
    """The table has at most 25 rows: the tree itself shows what is in one folder."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(
        r"^\| (?!you want|-).*", text[text.index("## Where to change what") : text.index("## Parts")], re.M
    )
    assert 0 < len(rows) <= 25
