"""The list of packages: its format, checksums, and paths on a mirror."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Package:
    name: str
    version: str
    sha256: str
    size: int
    # The path below a mirror's base: pool/main/...
    path: str

    @property
    def stored(self) -> str:
        """The name of the fetched file."""
        return self.path.rsplit("/", 1)[-1]


def parse(text: str) -> list[Package]:
    """Parses one package per line: name, version, SHA-256, size, path. Lines that begin with # are comments."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = line.split()
        if len(fields) != 5 or len(fields[2]) != 64 or not fields[3].isdigit():
            raise ValueError(f"line {number} of the list is no package: {line!r}")
        found.append(Package(fields[0], fields[1], fields[2], int(fields[3]), fields[4]))
    return found


def write(packages: Iterable[Package], head: str) -> str:
    lines = [
        f"{each.name} {each.version} {each.sha256} {each.size} {each.path}"
        for each in sorted(packages, key=lambda each: each.name)
    ]
    return "\n".join([*(f"# {line}" for line in head.splitlines()), *lines]) + "\n"


def stanzas(text: str) -> list[Package]:
    """Parses the output of `apt-cache show`."""
    found = []
    for stanza in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line and not line.startswith(" "))
        if "Filename" in fields:
            found.append(
                Package(fields["Package"], fields["Version"], fields["SHA256"], int(fields["Size"]), fields["Filename"])
            )
    return found


def bases(targets: str, said: str = "") -> list[str]:
    """Returns the mirrors, each once: first the user's, then those of apt's sources, given one address per line."""
    asked = [said, *targets.split()]
    return list(dict.fromkeys(each.rstrip("/") for each in asked if each.startswith(("http://", "https://"))))


def megabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
