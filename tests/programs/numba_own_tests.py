"""numba-cuda's own tests of page-locked memory. Its helpers import `filecheck`, which only its compiler's tests use."""

import sys
import unittest
from unittest.mock import MagicMock

for name in ("filecheck", "filecheck.finput", "filecheck.matcher", "filecheck.options", "filecheck.parser"):
    sys.modules.setdefault(name, MagicMock())
unittest.main(module="numba.cuda.tests.cudadrv.test_host_alloc", argv=sys.argv)
