"""Makes docs/pictures/*.svg: diagrams from the *.dot files next to them, and nvidia-smi.svg from a real run.

python tools/pictures.py (`make pictures`; needs Graphviz's `dot` and the programs of `make build`)
"""

import hashlib
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
COMMAND = ["remotegpu", "run", "-p", "0.25", "--", "nvidia-smi"]
# Rich's own template without its fonts from a server: the documentation must fetch nothing.
SVG = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: Consolas, Menlo, "DejaVu Sans Mono", monospace; font-size: {char_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: Helvetica, Arial, sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def digest(source: Path) -> str:
    """Returns the hash that tests/layout compares: each SVG contains the hash of its source."""
    return hashlib.sha256(source.read_bytes()).hexdigest()


def drawn(source: Path) -> str:
    made = subprocess.run(["dot", "-Tsvg", str(source)], check=True, capture_output=True, text=True)
    return made.stdout + f"<!-- {source.name} sha256:{digest(source)} -->\n"


def terminal(command: list[str]) -> str:
    """Returns a picture of a terminal with the command's output."""
    program = str(ROOT / ".venv" / "bin" / command[0])
    ran = subprocess.run([program, *command[1:]], check=True, capture_output=True, text=True)
    lines = [f"$ {' '.join(command)}", *ran.stdout.rstrip().splitlines()]
    console = Console(record=True, width=max(map(len, lines)), file=sys.stderr, color_system=None)
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    theme = DEFAULT_TERMINAL_THEME
    made = console.export_svg(title="a quarter of a GPU", theme=theme, code_format=SVG, unique_id="terminal")
    return "\n".join(line.rstrip() for line in made.splitlines()) + "\n"


def main() -> None:
    for source in sorted(PICTURES.glob("*.dot")):
        source.with_suffix(".svg").write_text(drawn(source))
    (PICTURES / "nvidia-smi.svg").write_text(terminal(COMMAND))


if __name__ == "__main__":
    main()
