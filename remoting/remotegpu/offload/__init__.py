"""The old name of `remotegpu_offload`. It goes with the next release."""

raise ImportError(
    "remotegpu.offload is called remotegpu_offload: import that; a PYTHONPATH that names "
    "remotegpu/offload/sitecustomize has to name remotegpu_offload/sitecustomize"
)
