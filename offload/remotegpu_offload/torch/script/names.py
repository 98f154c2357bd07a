"""The torch device for a program that knows nothing of it: everything that `cuda` in an unmodified script needs, armed
at once.
"""

from collections.abc import Callable, Iterable

from remotegpu_offload.torch import cuda, device, random, shown
from remotegpu_offload.torch.script import absent, amp, checkpoint, device_names, loader, wrapping
from remotegpu_offload.torch.stream import link


def arm(devices: Iterable[str] = ("cuda",), opener: Callable[[], device.Source] | None = None) -> None:
    """Let these names mean the remote device in this process, for good; a second call does nothing.

    To be called right after `import torch`, where the configuration has a `torch` rule. The session is opened when the
    program first uses the device: by `opener`, or else as this process's own. Raises device.UnsupportedTorchError
    where this torch cannot have such a device, ValueError for a name that is none.
    """
    chosen = tuple(devices)
    if shown.names():
        return
    wrong = [name for name in chosen if name not in device_names.NAMES]
    if wrong or not chosen:
        raise ValueError(f"torch: {{devices: {list(chosen)}}}: each must be one of {', '.join(device_names.NAMES)}")
    device.prepare()
    link.configure(opener or _current)
    device_names.install(chosen)
    wrapping.install()
    random.install()
    cuda.install(chosen)
    amp.install()
    loader.install()
    checkpoint.install()
    absent.install()


def _current() -> device.Source:
    from remotegpu_offload.client import session  # noqa: PLC0415 - only once the program uses the device

    return session.current()
