"""Notebooks run by nbclient: a kernel in an acceptor, and a kernel here with magics; both against a local run."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient
from support.system import until

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
    there = {"kernel_provisioner": {"provisioner_name": "remotegpu-provisioner", "config": {"backend": "cpu"}}}
    for name, metadata in (("local", {}), ("there", there)):
        folder = tmp_path / "jupyter" / "kernels" / name
        folder.mkdir(parents=True)
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        spec = {"argv": argv, "display_name": name, "language": "python", "metadata": metadata}
        (folder / "kernel.json").write_text(json.dumps(spec))
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
    local, there = (run(kernel, kernels, *CELLS) for kernel in ("local", "there"))
    assert there == local
    assert [len(outputs) for outputs in there] == [0, 0, 0, 1, 1] and "accuracy 0." in there[3][0][1]


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


def test_where_there_is_no_acceptor_the_kernel_says_so(
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
