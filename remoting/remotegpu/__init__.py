"""remotegpu: unmodified CUDA programs on a share of a GPU in another machine.

`api` has names and types for all parts, `rpc` calls the control service of an appliance, `appliance` serves GPUs, `cli`
is the command line, `dashboard` the page. `extensions` finds the packages remotegpu_offload and remotegpu_operator by
their entry points; no module here imports them, except that a notebook's magics are loaded by name. Importing this
package loads none of its parts.
"""

import importlib
from typing import Any

__all__ = ["__version__", "load_ipython_extension"]

__version__ = "0.1.0"


def load_ipython_extension(shell: Any) -> None:
    """Adds `%remotegpu` to a notebook: `%load_ext remotegpu`."""
    # By name: in a pod these packages are found by their paths, without the entry points of an installation.
    magics = importlib.import_module("remotegpu_offload.jupyter.magics")
    shell.register_magics(magics.OffloadMagics(shell, _notebook_share))


def _notebook_share() -> Any:
    # Imported only when a share is asked for: a pod has one, and none of the packages that a share needs here.
    return importlib.import_module("remotegpu.cli.run.notebook").NotebookShare()
