"""Says that `remotegpu_offload/sitecustomize` is the name of this folder now. It goes with the next release."""

import sys

sys.stderr.write(
    "remotegpu: offload is not armed: PYTHONPATH names remotegpu/offload/sitecustomize, which is called "
    "remotegpu_offload/sitecustomize now\n"
)
