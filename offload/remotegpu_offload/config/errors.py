"""The errors that a configuration file can have."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """An error in one line of the file. Lines count from 1."""

    line: int
    where: str  # "offload[2].mutates"; "" for the whole file
    message: str

    def __str__(self) -> str:
        return f"{self.line}: {self.where}: {self.message}" if self.where else f"{self.line}: {self.message}"


class ConfigError(ValueError):
    """The configuration cannot be used. The message is one line; `problems` has all problems with their lines."""

    def __init__(self, source: str, problems: list[Problem]) -> None:
        self.source = source
        self.problems = problems
        rest = len(problems) - 1
        more = f" (and {rest} more: `remotegpu offload check` lists them)" if rest else ""
        super().__init__(f"{source}:{problems[0]}{more}")
