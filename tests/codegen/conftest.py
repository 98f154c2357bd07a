"""The generator is no part of the installed package; the tests find it where it stands."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "remoting" / "codegen"))
