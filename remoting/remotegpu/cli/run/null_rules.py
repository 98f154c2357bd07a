"""Checks the rules of a null GPU after a run: the run fails if a rule matched no kernel.

remoting/softgpu/src/kernels/rules.rs applies them.
"""

import contextlib
import struct
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from remotegpu.api import names
from remotegpu.api.modes import Profile
from remotegpu.cli import exits

# One page, with a counter of eight bytes for each rule.
_TALLY_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts how often each rule of a file was applied by all processes of a run."""

    rules: Path
    copy: Path  # readable for workers, which run as other users
    counts: Path

    def unmatched(self) -> list[str]:
        """Returns an error for each rule that matched no kernel."""
        lines = rules_of(self.rules.read_text())
        counts = struct.unpack_from(f"<{len(lines)}Q", self.counts.read_bytes())
        return [
            f"{self.rules}, line {number}: no kernel that ran matches the rule '{rule}'"
            for (number, rule), count in zip(lines, counts, strict=True)
            if not count
        ]

    def environment(self) -> dict[str, str]:
        return {names.NULL_RULES_ENV: str(self.copy), names.NULL_TALLY_ENV: str(self.counts)}


def rules_of(text: str) -> list[tuple[int, str]]:
    """Returns the line number and the text of each rule in a file."""
    lines = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1))
    return [(number, line) for number, line in lines if line and not line.startswith("#")]


@contextlib.contextmanager
def tallied(environment: Mapping[str, str], profile: Profile) -> Iterator[Tally | None]:
    """Yields a tally for the rules that `environment` names; None without rules, or if a parent process has a tally."""
    file = environment.get(names.NULL_RULES_ENV)
    if not file or names.NULL_TALLY_ENV in environment:
        yield None
        return
    if not profile.is_null:
        raise exits.CliError(
            exits.USAGE, f"{names.NULL_RULES_ENV}={file} is for a GPU that runs no kernel: add --profile null-h100"
        )
    rules = Path(file).resolve()
    try:
        text = rules.read_text()
    except OSError as error:
        raise exits.CliError(exits.USAGE, f"{names.NULL_RULES_ENV}={file}: {error.strerror}") from None
    sys.stderr.write(f"remotegpu: null GPU: {len(rules_of(text))} rules of {rules} write numbers in place of kernels\n")
    with tempfile.TemporaryDirectory(prefix="remotegpu-rules-") as folder:
        tally = Tally(rules, Path(folder) / rules.name, Path(folder) / "tally")
        tally.copy.write_text(text)
        tally.counts.write_bytes(bytes(_TALLY_BYTES))
        for path, mode in ((Path(folder), 0o755), (tally.copy, 0o644), (tally.counts, 0o666)):
            path.chmod(mode)
        yield tally


def code_with_rules(code: int, tally: Tally | None) -> int:
    """Prints the rules that matched no kernel. Returns the exit code of the run: `code`, or DIVERGED in place of 0."""
    unmatched = [] if tally is None else tally.unmatched()
    for line in unmatched:
        sys.stderr.write(f"remotegpu: {line}\n")
    return exits.DIVERGED if unmatched and code == 0 else code
