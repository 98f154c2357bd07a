"""The package that `paging.py` imports: modules that import each other, and one that does not exist.

It has eleven modules, and `TOTAL` is a sum over them: it shows that they were executed. Nothing else uses it. The
modules do no other work, so that only their paging is measured.
"""

import contextlib

from . import first, second
from .deep import below

with contextlib.suppress(ImportError):
    from . import absent  # type: ignore[attr-defined]  # noqa: F401

TOTAL = first.VALUE + second.VALUE + below.VALUE
