"""Offload: runs functions, classes and tensors of a Python program in an acceptor on an appliance.

This package runs inside the user's interpreter. It imports only the standard library, cloudpickle, yaml,
`remotegpu.api` and `remotegpu.paths`. Its `cli` and `appliance` folders belong to other programs and import more.
"""

from typing import Final

# Packages that each end loads from its own installation, never from the other end.
OURS: Final = ("remotegpu", "remotegpu_offload")
