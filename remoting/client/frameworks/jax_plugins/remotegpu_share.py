"""A plugin of JAX, found by its name space: `remotegpu run` puts this folder into PYTHONPATH.

JAX looks for NVIDIA's device files and passes over every GPU where it finds none. A machine with a share has none. Only
JAX imports this module. A JAX without the question asks for no answer.
"""


def initialize() -> None:
    """Called by JAX before it counts GPUs (`jax._src.xla_bridge.discover_pjrt_plugins`)."""
    from jax._src import hardware_utils  # noqa: PLC0415

    hardware_utils.has_visible_nvidia_gpu = lambda: True
