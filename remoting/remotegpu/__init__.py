"""remotegpu: unmodified CUDA programs on a share of a GPU in another machine."""

__all__ = ["__version__"]

__version__ = "0.1.0"
