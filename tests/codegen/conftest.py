"""The generator and the tools are no part of the installed package; the tests find them where they stand."""

import sys
from pathlib import Path

for folder in ("remoting/codegen", "tools"):
    sys.path.insert(0, str(Path(__file__).parents[2] / folder))
