"""Finding drivers, and what a back end tells its workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from remotegpu.api.modes import Profile
from remotegpu.appliance.backends import cuda
from remotegpu.appliance.backends.base import BackendError
from remotegpu.appliance.backends.cpu_usage import busy_and_all
from remotegpu.appliance.backends.software import SoftwareBackend
from remotegpu.appliance.settings import Settings

GIB = 1 << 30


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """No driver of this machine is found."""
    monkeypatch.setattr(cuda, "_FOLDERS", ("/no/folder",))
    monkeypatch.setattr(cuda, "_known_to_the_loader", list)


def library(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "libcuda.so.580.1").touch()
    (folder / "libcuda.so.1").symlink_to("libcuda.so.580.1")
    return folder


@pytest.mark.usefixtures("nowhere")
def test_our_own_client_is_not_taken_for_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client, driver = library(tmp_path / "dist" / "client"), library(tmp_path / "driver")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{client}:{driver}")
    assert cuda.find_driver(tmp_path / "dist") == driver / "libcuda.so.580.1"
    monkeypatch.setenv("LD_LIBRARY_PATH", str(client))
    with pytest.raises(BackendError):
        cuda.find_driver(tmp_path / "dist")


def test_a_software_gpu_has_room_for_its_context_beside_the_shares(tmp_path: Path) -> None:
    backend = SoftwareBackend(
        Settings(gpus=2, memory_bytes=GIB, profile=Profile.HOSTILE, threads=3), tmp_path / "libcuda.so.1"
    )
    environment = backend.environment(overhead_bytes=512)
    first, second = environment.pop("REMOTEGPU_SOFTGPU_UUIDS").split(",")
    assert environment == {
        "REMOTEGPU_SOFTGPU_DEVICES": "2",
        "REMOTEGPU_SOFTGPU_MEMORY": str(GIB + 512),
        "REMOTEGPU_SOFTGPU_PROFILE": "hostile",
        "REMOTEGPU_SOFTGPU_THREADS": "3",
    }
    assert first != second
    assert backend.shareable("any", GIB + 512, 512, 1000) == GIB
    other = SoftwareBackend(Settings(port=1, gpus=2), tmp_path).environment(0)["REMOTEGPU_SOFTGPU_UUIDS"]
    assert not {first, second} & set(other.split(",")), "appliances of one machine have different GPUs"


def test_the_use_of_cpus_is_read_as_proc_documents_it() -> None:
    """user nice system idle iowait irq softirq steal guest guest_nice: guests count as user time already."""
    stat = "cpu  100 20 30 1000 50 4 3 2 70 7\ncpu0 50 10 15 500 25 2 1 1 35 3\nintr 1 2\n"
    assert busy_and_all(stat) == (159, 1209)
