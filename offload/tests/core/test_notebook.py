"""Notebooks run by nbclient: a kernel here with magics."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient
from sklearn.linear_model import LinearRegression
from support.stand_in import StandIn
from support.system import until

from remotegpu.api.quantities import format_bytes
from remotegpu.cli import exits
from remotegpu.paths import find_dist
from remotegpu_offload.jupyter.cell import names_of
from remotegpu_offload.jupyter.proxy import GONE

SUPPORT = Path(__file__).parents[1] / "support"
SECONDS = 90
pytestmark = [
    pytest.mark.timeout(240),
    # Warnings of Jupyter's own packages.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kernelspec `local`. HOME is a folder of the test."""
    connect = tmp_path / "connect"
    connect.write_text(f'#!/bin/sh\nexec {sys.executable} {SUPPORT / "connect_here.py"} "$@"\n')
    connect.chmod(connect.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("REMOTEGPU_CONNECT", str(connect))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    folder = tmp_path / "jupyter"
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    install(folder, "local", {"argv": argv, "display_name": "local", "language": "python"})
    return tmp_path


def install(jupyter: Path, name: str, spec: dict[str, Any]) -> None:
    folder = jupyter / "kernels" / name
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps(spec))


def notebook(*cells: str) -> Any:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])


def run(kernel: str, folder: Path, *cells: str, **more: Any) -> list[Any]:
    """Runs the cells, and returns the streams and results of each."""
    client = NotebookClient(
        notebook(*cells), kernel_name=kernel, timeout=SECONDS, startup_timeout=SECONDS,
        resources={"metadata": {"path": str(folder)}}, **more,
    )  # fmt: skip
    done = client.execute()
    return [[shown(output) for output in cell.outputs] for cell in done.cells]


def shown(output: Any) -> Any:
    match output.output_type:
        case "stream":
            return output.name, output.text
        case "error":
            return output.ename, output.evalue
        case _:
            return output.data["text/plain"]


MAGIC = (
    "%load_ext remotegpu",
    "import os\nimport numpy as np\nhere, scale, data = os.getpid(), 2, np.arange(6.0)\n"
    "def double(x):\n    return scale * x",
    "%remotegpu use cpu",
)


def test_an_offloaded_cell_takes_its_names_and_brings_back_what_it_assigns(kernels: Path) -> None:
    # A fitted estimator comes back only from an acceptor that is trusted.
    (kernels / "remotegpu.yaml").write_text("version: 1\ntrust: full\n")
    cells = (
        *MAGIC,
        "%%offload\nimport os\nthere = os.getpid()\nfound = double(data) + 1\nprint('in the cell')\nfound.sum()",
        "[there != here, found.tolist(), os.getpid() == here, data.tolist()]",
        "%%offload\ndata[0] = 7\ndef triple(x):\n    return 3 * x\ntotal = sum(triple(value) for value in data)",
        "[data.tolist(), float(total), triple(5)]",
        "%%offload\nfrom sklearn.linear_model import LinearRegression\n"
        "model = LinearRegression().fit(data[:, None], found)\nround(model.score(data[:, None], found), 6)",
        "[round(float(model.predict([[1.0]])[0]), 4)]",
        "%remotegpu stats",
        "%remotegpu close",
    )
    shows = run("local", kernels, *cells)
    local = np.array([7.0, 1, 2, 3, 4, 5])
    found = 2 * np.arange(6.0) + 1
    fitted = LinearRegression().fit(local[:, None], found)
    assert shows[2] == [("stdout", "acceptor here (cpu) at this machine\n")]
    assert ("stdout", "in the cell\n") in shows[3] and eval(shows[3][-1], {"np": np}) == found.sum()
    assert eval(shows[4][0]) == [True, found.tolist(), True, np.arange(6.0).tolist()]
    assert eval(shows[6][0]) == [local.tolist(), 3 * local.sum(), 15]
    assert eval(shows[7][-1], {"np": np}) == round(fitted.score(local[:, None], found), 6)
    assert eval(shows[8][0]) == [round(float(fitted.predict([[1.0]])[0]), 4)]
    # A cell is one round trip.
    assert json.loads(shows[9][0][1])["counters"]["by_service"]["CALL"] == 3


def test_what_a_cell_brings_back_is_checked(kernels: Path) -> None:
    cell = "%%offload\nfrom sklearn.linear_model import LinearRegression\nkept, model = 1, LinearRegression()"
    shows = run("local", kernels, *MAGIC, cell, "'kept' in globals()", allow_errors=True)
    assert shows[3][0][0] == "RefusedError" and "write `trust: full`" in shows[3][0][1]
    assert shows[4] == ["False"]


def test_an_offloaded_cell_that_fails_shows_its_own_lines(kernels: Path) -> None:
    shows = run(
        "local", kernels, *MAGIC, "%%offload\nbefore = 1\nbroken = 1 / 0", "%%offload cuda\n1", "%remotegpu fly",
        "%remotegpu use tpu", "%remotegpu close", allow_errors=True,
    )  # fmt: skip
    assert shows[3] == [("ZeroDivisionError", "division by zero")]
    assert shows[4][0][0] == "UsageError" or "takes no arguments" in str(shows[4])
    for each in (shows[5], shows[6]):
        assert "write `%remotegpu use BACKEND`" in str(each)


def test_the_traceback_of_an_offloaded_cell_is_not_one_of_ours(kernels: Path) -> None:
    frames = (
        "import sys, traceback\n"
        "sorted({each.filename.rpartition('/')[2] for each in traceback.extract_tb(sys.last_traceback)"
        " if '/remotegpu_offload/' in each.filename})"
    )
    shows = run("local", kernels, *MAGIC, "%%offload\n1 / 0", frames, allow_errors=True)
    assert shows[3:] == [[("ZeroDivisionError", "division by zero")], ["[]"]]


def test_a_notebook_takes_a_share_of_a_gpu(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy in the notebook's own process, and a program that it starts, use the share; it is given back."""
    cells = (
        "%load_ext remotegpu",
        "%remotegpu -p 0.25",
        "import cupy\na = cupy.arange(1 << 20, dtype='int64')\nint((a * a).sum()), cupy.cuda.runtime.memGetInfo()[1]",
        "%remotegpu -p 0.5",
        "%remotegpu stats",
        "import subprocess\nprint(subprocess.run(['nvidia-smi', '-L'], capture_output=True, text=True).stdout)",
        "%remotegpu close",
        "%remotegpu stats",
        "%remotegpu -p 0.25",
    )
    with StandIn(find_dist().root, "--memory", "4GiB") as appliance:
        monkeypatch.setenv("REMOTEGPU_APPLIANCE", appliance.endpoint)
        shows = run("local", kernels, *cells, allow_errors=True)
        until(lambda: appliance.leased == 0, 10, "the share is free again")
        size = appliance.gpus[0].shareable_bytes // 4
    numbers = np.arange(1 << 20)
    assert eval(shows[2][0]) == (int((numbers * numbers).sum()), size)
    for line in (shows[1][0], shows[4][0][1]):
        assert appliance.endpoint in line and f"of {format_bytes(size)} used" in line
    assert "restart the kernel" in str(shows[3]) and "restart the kernel" in str(shows[8])
    assert "GPU 0: " in shows[5][0][1]
    assert shows[7] == [("stdout", "the share was given back\n")]


def test_a_share_is_refused_where_something_uses_cuda_already(kernels: Path) -> None:
    driver = find_dist().native / "libcuda.so.1"
    cells = (
        f"import ctypes\nit = ctypes.CDLL({str(driver)!r})",
        "%load_ext remotegpu",
        "%remotegpu -p 0.25",
        "%remotegpu --nonsense",
    )
    shows = run("local", kernels, *cells, allow_errors=True)
    assert str(driver) in str(shows[2]) and "restart the kernel" in str(shows[2])
    assert "--nonsense" in str(shows[3])


@pytest.mark.parametrize(
    ("source", "reads", "writes"),
    [
        ("a = b", "b", "a"),
        ("a += 1", "a", "a"),
        ("import x\nx.f(y)", "x y", ""),
        ("def f(p):\n    return p + q\nz = f(1)", "f q", "z"),
        ("class C(Base):\n    m = n\n", "Base n", ""),
        ("[k for k in ks]", "ks", ""),
        ("for i in range(3):\n    t = i", "i", "i t"),
        ("a[0] = 1\nb.c.d = 2\ndel e['x']", "a b e", "a b e"),
        ("def g():\n    global h\n    h = 1\ng()", "g", "h"),
        ("with open(p) as f:\n    (u, *v) = f", "f p", "f u v"),
        ("if (w := len(s)) > 1:\n    pass", "s", "w"),
    ],
)
def test_names_of_a_cell(source: str, reads: str, writes: str) -> None:
    found = names_of(source)
    assert set(reads.split()) <= set(found.reads) and not {"range", "len", "open"} & set(found.reads)
    assert found.writes == tuple(sorted(writes.split()))


PROVISIONER = {"provisioner_name": "remotegpu-provisioner", "config": {"backend": "cpu"}}


@pytest.mark.parametrize("metadata", [{"kernel_provisioner": PROVISIONER}, {}])
def test_a_kernelspec_of_before_is_told_what_is_there_instead(
    kernels: Path, capfd: pytest.CaptureFixture[str], metadata: dict[str, Any]
) -> None:
    command = "import sys; from remotegpu_offload.jupyter.proxy import main; sys.exit(main())"
    argv = [sys.executable, "-c", command, "-f", "{connection_file}"]
    install(
        kernels / "jupyter",
        "before",
        {"argv": argv, "display_name": "before", "language": "python", "metadata": metadata},
    )
    with pytest.raises(RuntimeError) as raised:
        start_new_kernel(kernel_name="before", startup_timeout=SECONDS)
    assert GONE in str(raised.value) + capfd.readouterr().err


def test_the_command_that_added_such_a_kernel_says_so() -> None:
    command = [str(Path(sys.executable).parent / "remotegpu"), "offload", "jupyter", "install", "--backend", "rocm"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stdout) == (exits.USAGE, "") and GONE in done.stderr
