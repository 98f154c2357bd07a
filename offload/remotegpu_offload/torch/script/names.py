"""Prepares a process so that an unmodified script can use the torch device: installs all replacements for `cuda`."""

from collections.abc import Callable, Iterable

from remotegpu_offload.torch import cuda, device, random, shown
from remotegpu_offload.torch.script import absent, amp, checkpoint, device_names, loader, wrapping
from remotegpu_offload.torch.stream import link


def arm(devices: Iterable[str] = ("cuda",), opener: Callable[[], device.Source] | None = None) -> None:
    """Makes these names refer to the remote device in this process, permanently. A second call does nothing.

    Call it directly after `import torch` if the configuration has a `torch` rule. The session is opened at the
    program's first use of the device: by `opener`, or as the session of this process. Raises
    device.UnsupportedTorchError if this torch does not support such a device, ValueError for an unknown name.
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
    from remotegpu_offload.client import session  # noqa: PLC0415 - only when the program uses the device

    return session.current()
