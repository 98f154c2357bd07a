"""Finds the known name that is nearest to a misspelt one, for messages."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Returns the most similar known name; None if no name is similar."""
    choices = sorted(known)
    folded = {choice.lower().replace("-", "_"): choice for choice in choices}
    found = get_close_matches(name.lower().replace("-", "_"), folded, n=1, cutoff=0.55)
    return folded[found[0]] if found else None


def suggestion(name: str, known: Iterable[str], are: str = "known are") -> str:
    """Returns the end of a sentence about an unknown name: the most similar known one, or all known names."""
    choices = sorted(known)
    found = nearest(name, choices)
    return f"did you mean {found!r}?" if found else f"{are} {', '.join(choices)}"
