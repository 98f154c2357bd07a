"""remotegpu: unmodified CUDA programs on a share of a GPU in another machine.

`api` has names and types for all parts, `rpc` calls the control service of an appliance, `appliance` serves GPUs, `cli`
is the command line, `dashboard` the page. `extensions` finds the packages remotegpu_offload and remotegpu_operator by
their entry points. No module here imports these two packages; only the magics of a notebook are loaded by name.
Importing `remotegpu` loads none of its parts.
"""

import importlib
from typing import Any

__all__ = ["__version__", "load_ipython_extension"]

__version__ = "0.1.0"


def load_ipython_extension(shell: Any) -> None:
    """Adds `%remotegpu` to a notebook: `%load_ext remotegpu`."""
    # Imported by name: in a pod the packages are on sys.path but not installed, so they have no entry points.
    magics = importlib.import_module("remotegpu_offload.jupyter.magics")
    shell.register_magics(magics.OffloadMagics(shell, _notebook_share))


def _notebook_share() -> Any:
    # Imported on first use: a pod already has a share, and lacks the packages that this module needs.
    return importlib.import_module("remotegpu.cli.run.notebook").NotebookShare()
