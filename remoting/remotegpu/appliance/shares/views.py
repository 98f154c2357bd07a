"""The view of a GPU that a lease gets: a device with a UUID and a PCI address of its own. Pure."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from remotegpu.rpc import pb

_PCI_BUS, _PCI_DEVICE, _PCI_DOMAIN = 33, 34, 50


@dataclass(frozen=True, slots=True)
class PhysicalGpu:
    """A GPU as the worker's snapshot describes it. Attributes of missing features are already 0."""

    name: str
    uuid: bytes
    memory_bytes: int
    pci: tuple[int, int, int]
    attributes: Mapping[int, int]
    # GPUs whose memory this GPU can access, by index: values by CUdevice_P2PAttribute.
    peers: Mapping[int, Mapping[int, int]] = field(default_factory=dict)

    @property
    def uuid_text(self) -> str:
        return uuid_text(self.uuid)


def uuid_text(uuid: bytes) -> str:
    """Returns the UUID in the form of nvidia-smi and CUDA_VISIBLE_DEVICES: "GPU-..."."""
    digits = uuid.hex()
    return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def device_of_share(gpu: PhysicalGpu, lease_id: str, memory_bytes: int) -> pb.Device:
    """Returns the device of one share. All values are computed from GPU and lease, so they never change."""
    digest = hashlib.sha256(gpu.uuid + bytes.fromhex(lease_id)).digest()
    domain, bus, device = _pci_address(digest[16:20])
    attributes = {**gpu.attributes, _PCI_DOMAIN: domain, _PCI_BUS: bus, _PCI_DEVICE: device}
    return pb.Device(
        name=gpu.name,
        uuid=_as_random_uuid(digest[:16]),
        memory_bytes=memory_bytes,
        pci_domain=domain,
        pci_bus=bus,
        pci_device=device,
        attributes=attributes,
        gpu_uuid=gpu.uuid_text,
    )


def devices_of_lease(
    gpus: Sequence[PhysicalGpu], places: Sequence[int], lease_id: str, sizes: Sequence[int]
) -> list[pb.Device]:
    """Returns the devices of a lease with shares of `sizes` bytes of the GPUs at `places`, and their peer access."""
    devices = [device_of_share(gpus[place], lease_id, size) for place, size in zip(places, sizes, strict=True)]
    for device, place in zip(devices, places, strict=True):
        for index, other in enumerate(places):
            if other in gpus[place].peers:
                device.peers.add(device=index, attributes=gpus[place].peers[other])
    return devices


def _pci_address(digest: bytes) -> tuple[int, int, int]:
    """Returns a PCI address in a domain that no PC has. So it never matches a device of the user's machine."""
    return 0x8000 | int.from_bytes(digest[:2], "big") & 0x7FFF, digest[2], digest[3] & 0x1F


def _as_random_uuid(digest: bytes) -> bytes:
    uuid = bytearray(digest)
    uuid[6] = uuid[6] & 0x0F | 0x40
    uuid[8] = uuid[8] & 0x3F | 0x80
    return bytes(uuid)
