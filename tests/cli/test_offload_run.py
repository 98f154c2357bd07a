"""`remotegpu offload run`: an appliance of this machine, its sandboxed acceptor, and a program."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

PATIENCE = 180.0
# An appliance starts for each run.
pytestmark = pytest.mark.timeout(600)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "remotegpu.cli", "offload", "run", "--python", sys.executable, *arguments]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/__init__.py").write_text("from .inner import NUMBER\n")
    (tmp_path / "pkg/inner.py").write_text("NUMBER = 42\n")
    (tmp_path / "data.txt").write_text("some data")
    (tmp_path / "secret.txt").write_text("a secret")
    (tmp_path / "remotegpu.yaml").write_text("version: 1\nfiles: {read: [data.txt], write: [out.txt]}\n")
    return tmp_path


def test_a_program_runs_in_the_sandbox_with_code_files_and_exit_code_from_here(project: Path) -> None:
    (project / "main.py").write_text(
        "import os, socket, sys\n"
        "import pkg\n"
        "print(pkg.NUMBER, sys.argv[1:], os.getcwd() == sys.path[0], open('data.txt').read())\n"
        "open('out.txt', 'w').write('written')\n"
        "for action in (lambda: open('secret.txt'), lambda: socket.create_connection(('127.0.0.1', 9))):\n"
        "    try:\n"
        "        action()\n"
        "    except OSError as error:\n"
        "        print(type(error).__name__)\n"
        "sys.exit(17)\n"
    )
    done = run(project, "--split", "app", "main.py", "a", "--b")
    lines = done.stdout.splitlines()
    assert (done.stderr, done.returncode) == ("", 17)
    assert lines[:2] == ["42 ['a', '--b'] True some data", "PermissionError"]
    # No network: refused by the sandbox, or nothing there.
    assert lines[2] in ("PermissionError", "OSError", "ConnectionRefusedError")
    assert (project / "out.txt").read_text() == "written"


def test_a_signal_passes_through_all_of_them(project: Path) -> None:
    (project / "main.py").write_text(
        "import time\ntry:\n    print('ready', flush=True)\n    time.sleep(1000)\n"
        "except KeyboardInterrupt:\n    print('stopped')\n"
    )
    with subprocess.Popen(
        command("--split", "app", "main.py"), cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert (out, err, process.returncode) == (b"stopped\n", b"", 0)


@pytest.mark.parametrize(("number", "carrier"), [(signal.SIGSEGV, "direct"), (signal.SIGKILL, "grpc")])
def test_a_program_that_dies_by_a_signal_dies_here_by_the_same(
    number: signal.Signals, carrier: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMOTEGPU_CARRIER", carrier)
    (project / "main.py").write_text(f"import os\nprint('alive', flush=True)\nos.kill(os.getpid(), {int(number)})\n")
    done = run(project, "--split", "app", "main.py")
    assert (done.stdout, done.returncode) == ("alive\n", -number)
    assert number.name in done.stderr


def test_a_call_that_kills_its_process_says_so(project: Path) -> None:
    (project / "remotegpu.yaml").write_text("version: 1\noffload: [{function: __main__.crash}]\n")
    (project / "main.py").write_text(
        "import os\ndef crash():\n    os.abort()\ntry:\n    crash()\nexcept RuntimeError as error:\n    print(error)\n"
    )
    done = run(project, "main.py")
    assert done.returncode == 0, done.stderr
    assert "SIGABRT" in done.stdout


def test_mistakes_are_reported_before_anything_is_started(project: Path) -> None:
    (project / "bad.yaml").write_text("version: 1\nfils: {}\n")
    for arguments, code, words in (
        (["--config", "bad.yaml", "main.py"], 2, "fils"),
        (["--python", "/nowhere/python", "main.py"], 127, "--python /nowhere/python"),
        (["--split", "quantum", "main.py"], 2, "quantum"),
        ([], 2, "remotegpu --help"),
    ):
        done = run(project, *arguments)
        assert done.returncode == code
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_missing_script_is_reported_as_python_does(project: Path) -> None:
    done = run(project, "--split", "app", "nowhere.py")
    assert done.returncode == 2
    assert done.stderr.startswith(f"{sys.executable}: can't open file '{project}/nowhere.py': [Errno 2]")
