"""The null GPU accepts machine code as a driver would: its answers about kernels, its refusals, its use of memory.

Everything here shows that calls are accepted or refused. No kernel runs, so nothing here shows that a result is right.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from compiled_programs import building
from support.system import REMOTEGPU, ROOT, Appliance, appliance

PROGRAMS = Path(__file__).parent / "programs"
SOURCE = ROOT / "remoting" / "driverapi" / "tests" / "data" / "kernels.cu"
Ask = Callable[..., dict[str, Any]]
ALL_MEANINGLESS = "no kernel runs on this GPU; all results are meaningless"
INVALID_VALUE, INVALID_IMAGE, NO_BINARY, INVALID_HANDLE = 1, 200, 209, 400
COOPERATIVE_TOO_LARGE, NOT_SUPPORTED, INVALID_CLUSTER = 720, 801, 912


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same kernels as PTX, as machine code for several architectures, and packed."""
    toolkit = building.toolkit()
    if toolkit is None:
        pytest.skip("no nvcc in this environment")
    folder = tmp_path_factory.mktemp("images")

    def run(program: str, *arguments: str) -> None:
        subprocess.run([toolkit / "bin" / program, *arguments], check=True, capture_output=True)

    made = {"ptx": folder / "90.ptx"}
    run("nvcc", "-ptx", "-arch=compute_90", "-o", str(made["ptx"]), str(SOURCE))
    for architecture in ("80", "90", "90a", "100"):
        made[architecture] = folder / f"{architecture}.cubin"
        run("nvcc", "-cubin", f"-arch=sm_{architecture}", "-o", str(made[architecture]), str(SOURCE))
    packed = [f"--image3=kind=elf,sm={sm},file={made[sm]}" for sm in ("80", "90", "100")]
    packed += [f"--image3=kind=ptx,sm=90,file={made['ptx']}"]
    for name, options in {
        "fatbin": ("--compress=false",),
        "compressed": ("--compress-all", "--compress-mode=size"),
        "grouped": ("--compress-all", "--concat"),
    }.items():
        made[name] = folder / f"{name}.fatbin"
        run("fatbinary", "-64", *options, "--create", str(made[name]), *packed)
    return made


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def natively(profile: str, program: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    command = [REMOTEGPU, "run", "--native", "--profile", profile, "--", sys.executable, str(PROGRAMS / program)]
    return subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def share() -> Iterator[Appliance]:
    with appliance(profile="null-h100", memory_mib=80 << 10) as it:
        yield it


@pytest.fixture(params=["native", "remote"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """Runs a program on a null GPU, and returns the answer that it printed."""
    if request.param == "native":
        return lambda program, *arguments: answer(natively("null-h100", program, *arguments))
    remote: Appliance = request.getfixturevalue("share")
    return lambda program, *arguments: answer(
        remote.run(sys.executable, str(PROGRAMS / program), *map(str, arguments), share="1")
    )


@pytest.fixture(scope="module")
def expected(images: dict[str, Path]) -> dict[str, Any]:
    """The answers of the software GPU, which runs kernels, about the PTX."""
    return answer(natively("normal", "describe_image.py", images["ptx"]))


@pytest.mark.parametrize("form", ["90", "90a", "fatbin", "compressed", "grouped", "ptx"])
def test_an_image_is_described_as_its_ptx_is(
    ask: Ask, images: dict[str, Path], expected: dict[str, Any], form: str
) -> None:
    found = ask("describe_image.py", images[form])
    assert found["kernels"].keys() == expected["kernels"].keys()
    assert len(found["kernels"]) == 11
    for name, kernel in found["kernels"].items():
        told = expected["kernels"][name]
        for key in ("parameters", "static_shared", "most_dynamic_shared"):
            assert kernel[key] == told[key], f"{name}: {key}"
        assert kernel["most_threads"] <= told["most_threads"], name
    assert found["variables"] == expected["variables"]
    if form != "ptx":
        assert found["kernels"]["clustered"]["cluster_width"] == 2


@pytest.mark.parametrize(("profile", "used"), [("null-h100", "90"), ("normal", "ptx")])
def test_only_the_image_that_the_driver_would_use_crosses(
    images: dict[str, Path], tmp_path: Path, profile: str, used: str
) -> None:
    """The compressed container holds machine code for three architectures, and PTX."""

    def sent(form: str) -> int:
        program = [sys.executable, str(PROGRAMS / "describe_image.py"), str(images[form])]
        answer(there.run(*program, share="1", env={"REMOTEGPU_STATS": str(tmp_path / form)}))
        counted: int = json.loads((tmp_path / form).read_text())["bytes_sent"]
        return counted

    with appliance(profile=profile, memory_mib=80 << 10) as there:
        alone, packed = sent(used), sent("fatbin")
        assert packed - alone < 300, "the one image and two headers"
        assert packed < images["fatbin"].stat().st_size
        assert sent("compressed") < alone


@pytest.mark.parametrize("architecture", ["80", "100"])
def test_machine_code_of_another_generation_is_refused(ask: Ask, images: dict[str, Path], architecture: str) -> None:
    assert ask("describe_image.py", images[architecture]) == {"code": NO_BINARY}


def test_damaged_machine_code_is_refused(ask: Ask, images: dict[str, Path], tmp_path: Path) -> None:
    whole = images["90"].read_bytes()
    at = whole.index(b"\x03\x19\x20\x00")
    for name, damaged in {
        "sections have headers of another size": whole[:58] + b"\x10\0" + whole[60:],
        "a kernel's parameters reach beyond their buffer": whole[:at] + b"\x03\x19\x08\x00" + whole[at + 4 :],
    }.items():
        file = tmp_path / "damaged.cubin"
        file.write_bytes(damaged)
        assert ask("describe_image.py", file) == {"code": INVALID_IMAGE}, name


def test_launches_are_held_to_a_drivers_rules(ask: Ask, images: dict[str, Path]) -> None:
    found = ask("launch_rules.py", images["90"])
    offered = found.pop("cooperative launches are offered")
    assert found == {
        "as it is": 0,
        "no blocks": INVALID_VALUE,
        "no threads": INVALID_VALUE,
        "too many rows of blocks": INVALID_VALUE,
        "too many threads": INVALID_VALUE,
        "more threads than bounds allow": INVALID_VALUE,
        "another block than required": INVALID_VALUE,
        "the block required": 0,
        "48 KiB of dynamic memory": 0,
        "too much dynamic memory": INVALID_VALUE,
        "allowing too much": INVALID_VALUE,
        "allowing 200 KiB": 0,
        "now 100 KiB": 0,
        "clusters of 8": 0,
        "clusters of 16": INVALID_CLUSTER,
        "clusters that do not divide the grid": INVALID_CLUSTER,
        "allowing 16": 0,
        "now clusters of 16": 0,
        "clusters of 32": INVALID_CLUSTER,
        "clusters of 2, as compiled": 0,
        "half a cluster": INVALID_CLUSTER,
        "other clusters than compiled": INVALID_CLUSTER,
        "clusters beyond the bound": INVALID_CLUSTER,
        "clusters within the bound": 0,
        "requiring clusters of 3": 0,
        "as then required": 0,
        "not as then required": INVALID_CLUSTER,
        # A share offers the features that its attributes name, even if its GPU could do more.
        "cooperative": 0 if offered else NOT_SUPPORTED,
        "too many blocks to cooperate": COOPERATIVE_TOO_LARGE if offered else NOT_SUPPORTED,
    }


def test_clusters_are_counted_for_a_kernel_and_for_none(ask: Ask, images: dict[str, Path]) -> None:
    """cuBLAS 13.10 asks without a function, cuTENSOR for clusters that no kernel can have: neither is an error."""
    found = ask("active_clusters.py", images["90"])
    blocks = found.pop("blocks")

    def fit(all_blocks: int, most: int) -> dict[str, list[int | None]]:
        numbers: dict[str, list[int | None]]
        numbers = {str(size): [0, all_blocks // size if size <= most else 0] for size in (1, 2, 3, 8, 16, 32)}
        return {"0": [INVALID_CLUSTER, None], **numbers, "most": [0, most]}

    assert blocks["none"] == 2048 // 128 * 132
    assert 0 < blocks["kernel"] <= blocks["none"]
    assert found.pop("none") == fit(blocks["none"], 16)
    assert found.pop("kernel") == fit(blocks["kernel"], 8)
    assert found.pop("kernel of any size") == fit(blocks["kernel"], 16)
    assert found.pop("none, with 100 KiB") == fit(2 * 132, 16), "two blocks of a multiprocessor's 228 KiB"
    assert found.pop("none, too large")["2"] == [0, 0]
    assert found == {"codes of what needs a function": [INVALID_HANDLE] * 3}


def test_memory_is_addresses(ask: Ask) -> None:
    found = ask("large_memory.py")
    assert found["total"] == 80 << 30
    assert found["filled"] == [0] * 4, "a long fill leaves zeros"
    assert found["small"] == [0, *[7] * 1000, 0]
    assert found["sent"] == sum(range(1 << 20))
    assert found["taken"] < 1 << 30


def test_it_says_first_that_results_are_meaningless(images: dict[str, Path]) -> None:
    done = natively("null-h100", "describe_image.py", images["90"])
    assert ALL_MEANINGLESS in done.stderr.splitlines()[0]
    assert done.stderr.count(ALL_MEANINGLESS) == 1


def test_programs_keep_their_compilers() -> None:
    """Variables that make frameworks keep PTX for the software GPU are not set."""
    show = "import json, os; print(json.dumps(dict(os.environ)))"
    for where in (["--native"], []):
        command = [REMOTEGPU, "run", *where, "--profile", "null-h100", "--", sys.executable, "-c", show]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        variables = answer(done)
        assert not {"CUPY_COMPILE_WITH_PTX", "TRITON_PTXAS_PATH", "USE_PYTORCH_KERNEL_CACHE"} & variables.keys()
        assert "stand-ins" not in variables.get("LD_PRELOAD", "")


def test_an_appliance_keeps_its_own_profile(share: Appliance) -> None:
    done = share.run("true", options=("--profile", "normal"))
    assert done.returncode == 2, done.stderr
    assert "--profile" in done.stderr
