"""The small nvidia-smi, with the NVML that programs get natively and on a share."""

from __future__ import annotations

import re
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.system import DIST

Run = Callable[..., subprocess.CompletedProcess[str]]
SMI = DIST / "bin" / "nvidia-smi"
# Where it is from stands in it.
FIELDS = Path(__file__).with_name("nvidia_smi_fields.txt")
pytestmark = pytest.mark.skipif(not SMI.exists(), reason="nvidia-smi is not built (make build)")


def test_list(runner: Run) -> None:
    run = runner(SMI, "-L")
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines
    for index, line in enumerate(lines):
        assert re.fullmatch(rf"GPU {index}: .+ \(UUID: GPU-[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}\)", line)


def test_query_as_scripts_ask_it(runner: Run) -> None:
    fields = "name,memory.total,memory.used,memory.free,driver_version,compute_cap,index"
    run = runner(SMI, f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-i", "0")
    assert run.returncode == 0, run.stderr
    name, total, used, free, _driver, capability, index = run.stdout.strip().split(", ")
    assert name
    assert int(total) > 0
    assert abs(int(total) - int(used) - int(free)) <= 2  # each is rounded
    assert re.fullmatch(r"\d+\.\d", capability)
    assert index == "0"


def test_table(runner: Run) -> None:
    run = runner(SMI)
    assert run.returncode == 0, run.stderr
    assert re.search(r"Driver Version: \S+ +CUDA Version: \d+\.\d", run.stdout)
    assert re.search(r"\d+MiB / +\d+MiB", run.stdout)
    assert {len(line) for line in run.stdout.splitlines() if line.startswith(("|", "+"))} == {91}


def test_unknown_fields_and_devices_are_refused(runner: Run) -> None:
    """A program that tries a field to see whether it exists reads NVIDIA's sentence on standard output."""
    refused = runner(SMI, "--query-gpu=name,colour", "--format=csv")
    assert (refused.returncode, refused.stdout.strip()) == (2, 'Field "colour" is not a valid field to query.')
    assert runner(SMI, "-L", "-i", "77").returncode == 6


@pytest.mark.parametrize("runner", ["remote"], indirect=True)
def test_processes_of_the_lease(runner: Run, compiled: Callable[[str], Path]) -> None:
    """Processes are told apart by the appliance: natively each process has a software GPU of its own."""
    program = compiled("hold.cu")
    query = f"{SMI} --query-compute-apps=process_name,used_memory --format=csv,noheader"
    run = runner(program, query)
    assert run.returncode == 0, run.stderr
    (line,) = run.stdout.splitlines()
    assert line.startswith(str(program))  # its arguments may follow
    assert line.endswith(", 100 MiB")
    assert runner(SMI, "--query-compute-apps=pid", "--format=csv,noheader").stdout == ""


@dataclass(frozen=True)
class Listed:
    """A field that NVIDIA's program lists: its name and unit as in the header, and further names."""

    name: str
    unit: str
    others: tuple[str, ...]

    @property
    def header(self) -> str:
        return self.name if self.unit == "-" else f"{self.name} [{self.unit}]"


def listed() -> dict[str, list[Listed]]:
    found: dict[str, list[Listed]] = {}
    for line in FIELDS.read_text().splitlines():
        if not line.startswith("#"):
            query, name, unit, *others = line.split()
            found.setdefault(query, []).append(Listed(name, unit, tuple(others)))
    return found


@pytest.mark.parametrize("query", listed())
def test_every_field_that_nvidias_program_lists_is_answered_and_no_other_one(runner: Run, query: str) -> None:
    """Agents ask for dozens of fields at once, and one that is refused would cost them all."""
    fields = listed()[query]
    shown = re.findall(r'^"(.*)"$', runner(SMI, f"--help-query-{query}").stdout, re.MULTILINE)
    assert {frozenset(names.split('" or "')) for names in shown} == {frozenset((f.name, *f.others)) for f in fields}
    for names in ([field.name for field in fields], [(field.name, *field.others)[-1] for field in fields]):
        run = runner(SMI, f"--query-{query}={','.join(names)}", "--format=csv")
        assert run.returncode == 0, run.stdout + run.stderr
        header, *lines = run.stdout.splitlines()
        assert header.split(", ") == [field.header for field in fields]
        assert all(len(line.split(", ")) == len(fields) for line in lines)
        assert bool(lines) == (query not in ("compute-apps", "accounted-apps"))
    refused = runner(SMI, f"--query-{query}=timestamp,colour", "--format=csv")
    assert (refused.returncode, refused.stdout.strip()) == (2, 'Field "colour" is not a valid field to query.')


def test_fields_that_nvml_tells_have_values(runner: Run) -> None:
    fields = "display_mode,display_attached,pcie.link.gen.max,pcie.link.gen.gpucurrent,temperature.memory"
    run = runner(SMI, f"--query-gpu={fields}", "--format=csv,noheader", "-i", "0")
    mode, attached, most, current, memory = run.stdout.strip().split(", ")
    assert (mode, attached, memory) == ("Disabled", "No", "[N/A]")
    assert most.isdigit()
    assert current.isdigit()


def test_xml_has_what_exporters_read(runner: Run) -> None:
    """The elements that Telegraf's and Netdata's collectors look up, with numbers and units where they split them."""
    run = runner(SMI, "-q", "-x")
    assert run.returncode == 0, run.stderr
    log = ElementTree.fromstring(run.stdout)
    assert log.tag == "nvidia_smi_log"
    assert log.findtext("attached_gpus") == str(len(log.findall("gpu")))
    for gpu in log.findall("gpu"):
        assert re.fullmatch(r"[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.0", gpu.attrib["id"])
        assert gpu.findtext("uuid", "").startswith("GPU-")
        sizes = {name: gpu.findtext(f"fb_memory_usage/{name}", "") for name in ("total", "used", "free", "reserved")}
        assert all(re.fullmatch(r"\d+ MiB|N/A", size) for size in sizes.values())
        assert re.fullmatch(r"\d+ %", gpu.findtext("utilization/gpu_util", ""))
        for path in (
            "product_name", "product_architecture", "fan_speed", "performance_state", "compute_mode",
            "utilization/memory_util", "utilization/encoder_util", "encoder_stats/session_count",
            "temperature/gpu_temp", "gpu_power_readings/power_draw", "gpu_power_readings/current_power_limit",
            "clocks/graphics_clock", "clocks/mem_clock", "max_clocks/sm_clock", "bar1_memory_usage/total",
            "pci/pci_bus_id", "pci/pci_gpu_link_info/pcie_gen/current_link_gen",
            "pci/pci_gpu_link_info/link_widths/max_link_width", "ecc_mode/current_ecc", "mig_mode/current_mig",
        ):  # fmt: skip
            assert gpu.findtext(path), path
        assert gpu.find("processes") is not None


def test_details_by_section(runner: Run) -> None:
    run = runner(SMI, "-q", "-d", "MEMORY,UTILIZATION")
    assert run.returncode == 0, run.stderr
    assert re.search(r"^    FB Memory Usage\n        Total {29}: \d+ MiB$", run.stdout, re.MULTILINE)
    assert "Utilization" in run.stdout
    assert "Product Name" not in run.stdout
    assert runner(SMI, "-q", "-d", "COLOUR").returncode == 2


def test_monitors_and_topology(runner: Run) -> None:
    run = runner(SMI, "dmon", "-s", "um", "-c", "1")
    names, units, values = (line.split() for line in run.stdout.splitlines())
    assert (names[:3], units[:3], len(values)) == (["#", "gpu", "sm"], ["#", "Idx", "%"], len(names) - 1)
    assert int(values[names.index("fb") - 1]) >= 0
    first, *_ = runner(SMI, "pmon", "-c", "1").stdout.splitlines()
    assert first.split() == ["#", "gpu", "pid", "type", "sm", "mem", "enc", "dec", "jpg", "ofa", "command"]
    assert runner(SMI, "topo", "-m").stdout.splitlines()[1].startswith("GPU0\t X \t")


def test_a_loop_into_a_file_ends_with_its_count(runner: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"
    run = runner(SMI, "dmon", "-c", "2", "-f", log)
    assert (run.returncode, run.stdout, len(log.read_text().splitlines())) == (0, "", 4)


def test_milliseconds_between_two_looks(runner: Run) -> None:
    """It continues until its reader has gone."""
    line = f"{SMI} --query-gpu=index --format=csv,noheader -lms 50 | head -n 3"
    run = runner("sh", "-c", line)
    assert run.stdout.split() == ["0", "0", "0"], run.stderr
