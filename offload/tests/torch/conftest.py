"""Fixtures of these tests. If torch is missing (`make test`), nothing here is imported: `make test-frameworks` runs
them."""

import importlib.util

if importlib.util.find_spec("torch"):
    collect_ignore_glob = []
    from offload_armed import armed, programs  # noqa: F401 - fixtures, of which files that run in one process share one
    from offload_torch import remote  # noqa: F401
else:
    collect_ignore_glob = ["test_*.py"]
