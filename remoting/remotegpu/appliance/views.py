"""A GPU as the holder of a lease sees it: a UUID and a PCI address of the share's own, attributes filtered. Pure."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from remotegpu.rpc import pb

_PCI_BUS, _PCI_DEVICE, _PCI_DOMAIN = 33, 34, 50

# CUdevice_attribute of what does not work over the network. Programs ask first and then choose another way.
NOT_PROVIDED: Final[Mapping[int, str]] = {
    83: "MANAGED_MEMORY",
    88: "PAGEABLE_MEMORY_ACCESS",
    89: "CONCURRENT_MANAGED_ACCESS",
    91: "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM",
    92: "CAN_USE_STREAM_MEM_OPS_V1",
    93: "CAN_USE_64_BIT_STREAM_MEM_OPS_V1",
    94: "CAN_USE_STREAM_WAIT_VALUE_NOR_V1",
    96: "COOPERATIVE_MULTI_DEVICE_LAUNCH",
    98: "CAN_FLUSH_REMOTE_WRITES",
    100: "PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES",
    101: "DIRECT_MANAGED_MEM_ACCESS_FROM_HOST",
    103: "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
    110: "GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED",
    112: "SPARSE_CUDA_ARRAY_SUPPORTED",
    113: "READ_ONLY_HOST_REGISTER_SUPPORTED",
    114: "TIMELINE_SEMAPHORE_INTEROP_SUPPORTED",
    116: "GPU_DIRECT_RDMA_SUPPORTED",
    117: "GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS",
    118: "GPU_DIRECT_RDMA_WRITES_ORDERING",
    119: "MEMPOOL_SUPPORTED_HANDLE_TYPES",
    121: "DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED",
    122: "CAN_USE_64_BIT_STREAM_MEM_OPS",
    123: "CAN_USE_STREAM_WAIT_VALUE_NOR",
    124: "DMA_BUF_SUPPORTED",
    125: "IPC_EVENT_SUPPORTED",
    128: "HANDLE_TYPE_FABRIC_SUPPORTED",
    132: "MULTICAST_SUPPORTED",
    133: "MPS_ENABLED",
}


@dataclass(frozen=True, slots=True)
class PhysicalGpu:
    """A GPU as the worker's snapshot describes it."""

    name: str
    uuid: bytes
    memory_bytes: int
    pci: tuple[int, int, int]
    attributes: Mapping[int, int]

    @property
    def uuid_text(self) -> str:
        return uuid_text(self.uuid)


def uuid_text(uuid: bytes) -> str:
    """As nvidia-smi writes it and CUDA_VISIBLE_DEVICES reads it."""
    digits = uuid.hex()
    return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def device_of_share(gpu: PhysicalGpu, lease_id: str, memory_bytes: int) -> pb.Device:
    """The device of one share. Everything is derived from GPU and lease, so it is the same whenever it is asked for."""
    digest = hashlib.sha256(gpu.uuid + bytes.fromhex(lease_id)).digest()
    domain, bus, device = _pci_address(digest[16:20])
    attributes = {key: 0 if key in NOT_PROVIDED else value for key, value in gpu.attributes.items()}
    attributes |= {_PCI_DOMAIN: domain, _PCI_BUS: bus, _PCI_DEVICE: device}
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


def _pci_address(digest: bytes) -> tuple[int, int, int]:
    """A domain that no PC has, so that nobody finds a device of the user's own machine under this address."""
    return 0x8000 | int.from_bytes(digest[:2], "big") & 0x7FFF, digest[2], digest[3] & 0x1F


def _as_random_uuid(digest: bytes) -> bytes:
    uuid = bytearray(digest)
    uuid[6] = uuid[6] & 0x0F | 0x40
    uuid[8] = uuid[8] & 0x3F | 0x80
    return bytes(uuid)
