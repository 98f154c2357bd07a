"""The description of an interpreter for sessions: its versions, and the accelerator that its framework finds."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from remotegpu_offload.acceptor import driver, versions

BACKENDS: Final = ("cuda", "rocm", "xpu", "cpu")
# The variables that limit which devices a process sees, by back end. Set after the fork, before a device is opened.
VISIBLE: Final = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    # HIP reads CUDA's variable too.
    "rocm": ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "xpu": ("ZE_AFFINITY_MASK",),
    "cpu": (),
}

# Prefixes of the names of the device nodes, by back end.
NODES: Final = {"cuda": ("nvidia",), "rocm": ("kfd", "dri"), "xpu": ("dri", "accel"), "cpu": ()}


class NoBackendError(Exception):
    """The environment lacks the requested back end; the message names the back ends that exist."""


@dataclass(frozen=True, slots=True)
class Environment:
    name: str
    backend: str
    python: str
    packages: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()

    @property
    def versions(self) -> dict[str, str]:
        """The versions of Python and of the packages, in the form that `versions.compare` takes."""
        return {"python": self.python, **self.packages}

    def to_dict(self) -> dict[str, Any]:
        """Returns the environment as JSON types, with the names of control.proto."""
        return {
            "name": self.name,
            "backend": self.backend,
            "python": self.python,
            "packages": dict(self.packages),
            "devices": list(self.devices),
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Environment":
        return cls(
            name=str(value["name"]),
            backend=str(value["backend"]),
            python=str(value["python"]),
            packages={str(key): str(version) for key, version in value.get("packages", {}).items()},
            devices=tuple(map(str, value.get("devices", ()))),
        )


def describe(name: str, backend: str = "") -> Environment:
    """Describes this interpreter. Opens the devices, so a process that will fork must not call it.

    Raises NoBackendError if `backend` is given and its devices are missing.
    """
    found, devices = find_backend(backend)
    packages = versions.installed()
    return Environment(name, found, packages.pop("python"), packages, devices)


def find_backend(wanted: str = "") -> tuple[str, tuple[str, ...]]:
    """Returns the back end and the names of its devices. Without torch or an accelerator, the back end is `cpu`."""
    if wanted == "cpu":
        return "cpu", ()
    found, devices = _accelerator()
    if wanted == "cuda" and found == "cpu" and "torch" not in sys.modules:
        # Some packages call CUDA without torch.
        found, devices = _driver()
    if wanted and wanted != found:
        has = f"torch finds {found}" if "torch" in sys.modules else "it has no torch, and no driver finds one"
        raise NoBackendError(
            f"{sys.executable} has no {wanted} device: {has}; install torch's build for {wanted} there, or check the "
            "driver"
        )
    return found, devices


def _driver() -> tuple[str, tuple[str, ...]]:
    try:
        devices = driver.devices()
    except driver.DriverError:
        return "cpu", ()
    return ("cuda", devices) if devices else ("cpu", ())


def _accelerator() -> tuple[str, tuple[str, ...]]:
    try:
        import torch  # noqa: PLC0415 (takes seconds, and not every environment has it)
    except ImportError:
        return "cpu", ()
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        return ("rocm" if torch.version.hip else "cuda"), tuple(names)
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        return "xpu", tuple(torch.xpu.get_device_name(index) for index in range(torch.xpu.device_count()))
    return "cpu", ()
