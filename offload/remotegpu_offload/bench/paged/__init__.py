"""The package that `paging.py` imports: modules that import each other, and one that does not exist."""

import contextlib

from . import first, second
from .deep import below

with contextlib.suppress(ImportError):
    from . import absent  # type: ignore[attr-defined]  # noqa: F401

TOTAL = first.VALUE + second.VALUE + below.VALUE
