"""Offload: functions, classes and tensors of a Python program run in an acceptor on an appliance.

It runs inside the user's interpreter, so it imports the standard library, cloudpickle and yaml, and of ours only
`remotegpu.api` and `remotegpu.paths`; but for `cli` and `appliance`, which are parts of those programs.
"""

from typing import Final

# The packages of which each end runs its own, whatever the other end has.
OURS: Final = ("remotegpu", "remotegpu_offload")
