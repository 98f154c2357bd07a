"""Notebooks run by nbclient: a kernel in an acceptor, and a kernel here with magics; both against a local run."""

from __future__ import annotations

import json
import os
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
from remotegpu.paths import find_dist
from remotegpu_offload.jupyter.cell import names_of
from remotegpu_offload.jupyter.kernelspec import install, kernelspec

SUPPORT = Path(__file__).parents[1] / "support"
SECONDS = 90
pytestmark = [
    pytest.mark.timeout(240),
    # Of Jupyter's own packages, not ours.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CELLS = (
    "import numpy as np\nfrom sklearn.datasets import load_digits\nfrom sklearn.linear_model import LogisticRegression",
    "data = load_digits()\nX, y = data.data[:300] / 16, data.target[:300]",
    "model = LogisticRegression(max_iter=200, random_state=0).fit(X[:200], y[:200])",
    "print(f'accuracy {model.score(X[200:], y[200:]):.6f}')",
    "np.round(np.linalg.svd(X[:50], compute_uv=False)[:3], 6).tolist()",
)


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Kernelspecs: `local`, and `there`, which runs in an acceptor. HOME is a folder of the test."""
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
    install(folder, "there", kernelspec("there", backend="cpu"))
    return tmp_path


def notebook(*cells: str) -> Any:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])


def run(kernel: str, folder: Path, *cells: str, **more: Any) -> list[Any]:
    """What each cell shows: its streams and results, by cell."""
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


def test_a_notebook_in_an_acceptor_shows_what_it_shows_here(kernels: Path) -> None:
    local, remote = (run(kernel, kernels, *CELLS) for kernel in ("local", "there"))
    assert remote == local
    assert [len(outputs) for outputs in remote] == [0, 0, 0, 1, 1] and "accuracy 0." in remote[3][0][1]


@pytest.mark.parametrize("provisioned", [True, False])
def test_a_kernelspec_of_before_starts_its_kernel(kernels: Path, provisioned: bool) -> None:
    """It has our package's old name; who does not know our provisioner runs its command."""
    spec = kernelspec("before", backend="cpu")
    spec["argv"][2] = "import sys; from remotegpu.offload.jupyter.proxy import main; sys.exit(main())"
    if not provisioned:
        del spec["metadata"]
    install(kernels / "jupyter", "before", spec)
    assert run("before", kernels, "6 * 7", "import os; os.getppid() > 0") == [["42"], ["True"]]


def test_a_kernel_in_an_acceptor_does_what_kernels_do(kernels: Path) -> None:
    """Errors with the cell's source, printing to both streams, display, a module of the notebook's folder."""
    (kernels / "shapes.py").write_text("def area(r):\n    return 3 * r * r\n")
    cells = (
        "import sys\nprint('out'); print('err', file=sys.stderr)",
        "from IPython.display import display\ndisplay({'a': 1})\n2",
        "def broken():\n    return 1 / 0\nbroken()",
        "import shapes; shapes.area(2)",
        "x = 41",
        "x + 1",
    )
    shows = run("there", kernels, *cells, allow_errors=True)
    assert sorted(shows[0]) == [("stderr", "err\n"), ("stdout", "out\n")]
    assert shows[1:] == [["{'a': 1}", "2"], [("ZeroDivisionError", "division by zero")], ["12"], [], ["42"]]


def test_an_interrupt_stops_the_cell_and_not_the_kernel(kernels: Path) -> None:
    client = NotebookClient(
        notebook("import time\nprint('begun', flush=True)\ntime.sleep(600)", "6 * 7"),
        kernel_name="there", timeout=SECONDS, startup_timeout=SECONDS, allow_errors=True, interrupt_on_timeout=True,
        resources={"metadata": {"path": str(kernels)}},
    )  # fmt: skip

    def interrupt_the_first(cell_index: int, **_: Any) -> None:
        # After so many seconds it is interrupted, again and again until it has ended.
        client.timeout = 3 if cell_index == 0 else SECONDS

    client.on_cell_execute = interrupt_the_first
    done = client.execute()
    assert [shown(output) for output in done.cells[1].outputs] == ["42"]
    assert ("KeyboardInterrupt", "") in [shown(output) for output in done.cells[0].outputs]


def test_without_an_acceptor_the_kernel_reports_it(
    kernels: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REMOTEGPU_CONNECT", str(kernels / "nothing"))
    with pytest.raises(RuntimeError, match="Kernel died"):
        start_new_kernel(kernel_name="there", startup_timeout=SECONDS)
    assert "no kernel is started" in capfd.readouterr().err


def test_nothing_of_the_kernel_is_left(kernels: Path) -> None:
    ((pid,),) = run("there", kernels, "import os; os.getpid()")
    process = Path("/proc", pid)
    until(lambda: not process.exists(), 30, "the acceptor has ended")


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


def test_the_command_adds_a_kernel_to_jupyter(tmp_path: Path) -> None:
    environment = {**os.environ, "JUPYTER_DATA_DIR": str(tmp_path)}
    command = [str(Path(sys.executable).parent / "remotegpu"), "offload", "jupyter", "install", "--user"]
    more = ["--backend", "rocm", "--appliance", "gpu1:7070", "--fraction", "0.25"]
    done = subprocess.run([*command, *more], capture_output=True, text=True, env=environment, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    file = tmp_path / "kernels" / "remotegpu" / "kernel.json"
    assert done.stdout.strip() == str(file)
    spec = json.loads(file.read_text())
    assert spec["display_name"] == "Python (remotegpu, rocm)"
    config = {"backend": "rocm", "appliance": "gpu1:7070", "fraction": 0.25}
    assert spec["metadata"]["kernel_provisioner"] == {"provisioner_name": "remotegpu-provisioner", "config": config}
