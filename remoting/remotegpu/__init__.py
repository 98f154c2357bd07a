"""remotegpu: unmodified CUDA programs on a share of a GPU in another machine."""

from typing import Any

__all__ = ["__version__", "load_ipython_extension"]

__version__ = "0.1.0"


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext remotegpu` in a notebook."""
    from remotegpu.offload.jupyter.magics import OffloadMagics  # noqa: PLC0415 (this package is imported everywhere)

    shell.register_magics(OffloadMagics)
