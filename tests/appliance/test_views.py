"""A share has an identity of its own."""

from __future__ import annotations

import secrets
import uuid

from remotegpu.appliance.shares.views import PhysicalGpu, device_of_share, devices_of_lease, uuid_text

ATTRIBUTES = dict.fromkeys(range(1, 150), 1)
GPU = PhysicalGpu("GPU X", bytes(range(16)), 8 << 30, (0, 1, 0), ATTRIBUTES)
LEASE = "ab" * 16


def test_the_identity_is_stable_in_a_lease() -> None:
    assert device_of_share(GPU, LEASE, 100) == device_of_share(GPU, LEASE, 100)


def test_two_shares_differ_in_uuid_and_pci_address() -> None:
    devices = [device_of_share(GPU, secrets.token_hex(16), 100) for _ in range(100)]
    assert len({device.uuid for device in devices}) == 100
    assert len({(device.pci_domain, device.pci_bus, device.pci_device) for device in devices}) == 100
    assert GPU.uuid not in {device.uuid for device in devices}


def test_what_is_shown() -> None:
    device = device_of_share(GPU, LEASE, 2 << 30)
    assert (device.name, device.memory_bytes, device.gpu_uuid) == ("GPU X", 2 << 30, uuid_text(GPU.uuid))
    assert uuid.UUID(bytes=device.uuid).version == 4
    assert 0x8000 <= device.pci_domain <= 0xFFFF
    assert device.pci_bus <= 0xFF
    assert device.pci_device <= 0x1F
    shown = dict(device.attributes)
    assert (shown.pop(50), shown.pop(33), shown.pop(34)) == (device.pci_domain, device.pci_bus, device.pci_device)
    assert shown == {number: 1 for number in ATTRIBUTES if number not in (33, 34, 50)}


def test_a_uuid_reads_as_nvidia_smi_writes_it() -> None:
    assert uuid_text(bytes(range(16))) == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"


def test_devices_of_a_lease_know_which_of_them_they_reach() -> None:
    reached = {2: 1}  # CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED
    gpus = [
        PhysicalGpu("A", bytes(16), 8 << 30, (0, 1, 0), {}, {2: reached}),
        PhysicalGpu("B", bytes([1] * 16), 8 << 30, (0, 2, 0), {}, {}),
        PhysicalGpu("C", bytes([2] * 16), 8 << 30, (0, 3, 0), {}, {0: reached, 1: reached}),
    ]
    devices = devices_of_lease(gpus, [2, 0], LEASE, [100, 200])
    assert [device.memory_bytes for device in devices] == [100, 200]
    # By their places in the lease; the lease has no share of B.
    assert [[(peer.device, dict(peer.attributes)) for peer in device.peers] for device in devices] == [
        [(1, reached)],
        [(0, reached)],
    ]
