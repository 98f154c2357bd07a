"""The old name of `remotegpu_offload`. The next release will not have it.

An import fails with an error that has the new name. `sitecustomize` prints the same if PYTHONPATH still has the old
folder. No part of remotegpu uses either.
"""

raise ImportError(
    "remotegpu.offload is called remotegpu_offload: import that; a PYTHONPATH that names "
    "remotegpu/offload/sitecustomize has to name remotegpu_offload/sitecustomize"
)
