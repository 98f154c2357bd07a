"""A package for `paging.py` to import: eleven modules that import each other, and an import of one that does not exist.

`TOTAL` is a sum over all modules, which proves that each was executed. The modules do no other work, so that the
benchmark measures only their paging.
"""

import contextlib

from . import first, second
from .deep import below

with contextlib.suppress(ImportError):
    from . import absent  # type: ignore[attr-defined]  # noqa: F401

TOTAL = first.VALUE + second.VALUE + below.VALUE
