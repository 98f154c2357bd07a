"""Prints the new name of this folder, `remotegpu_offload/sitecustomize`. The next release will not have this file."""

import sys

sys.stderr.write(
    "remotegpu: offload is not armed: PYTHONPATH names remotegpu/offload/sitecustomize, which is called "
    "remotegpu_offload/sitecustomize now\n"
)
