"""The old name of `remotegpu_offload`. It goes with the next release.

Importing it fails with the new name. `sitecustomize` says the same where a PYTHONPATH still names the old folder.
Nothing of ours uses either.
"""

raise ImportError(
    "remotegpu.offload is called remotegpu_offload: import that; a PYTHONPATH that names "
    "remotegpu/offload/sitecustomize has to name remotegpu_offload/sitecustomize"
)
