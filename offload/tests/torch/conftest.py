"""Where torch is missing (`make test`), nothing here is even imported: `make test-frameworks` runs these."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]
