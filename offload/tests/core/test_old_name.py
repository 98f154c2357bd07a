"""For one release `remotegpu.offload` means `remotegpu_offload`: in programs, pickles, command lines and PYTHONPATH."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from offload_local import LocalAcceptors, local_session
from offload_programs import PATIENCE, Project
from support.system import DIST, ROOT

import remotegpu
from remotegpu_offload.acceptor import packets
from remotegpu_offload.config.model import FunctionRule
from remotegpu_offload.jupyter.provisioner import OffloadProvisioner

# Of a clone, and as pods have it.
OLD_STARTS = [
    Path(remotegpu.__file__).parent,
    DIST / "python" / "remotegpu",
    DIST / "pod" / "lib" / "python" / "remotegpu",
]
# An interpreter in which nothing of ours is installed.
BARE = sys._base_executable  # type: ignore[attr-defined]


def python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False
    )


SAME = """
import importlib, pkgutil, sys
import remotegpu_offload as new
prefix = "remotegpu_offload."
names = [module.name.removeprefix(prefix) for module in pkgutil.walk_packages(new.__path__, prefix)]
# Those need what is not installed here.
modules = [name for name in names if not name.startswith(("torch", "bench.", "files.arrow"))]
first, second = ("remotegpu.offload", "remotegpu_offload")[:: int(sys.argv[1])]
for name in modules:
    one = importlib.import_module(f"{first}.{name}")
    other = importlib.import_module(f"{second}.{name}")
    assert one is other is sys.modules[f"remotegpu.offload.{name}"], name
    assert one.__name__ == one.__spec__.name == f"remotegpu_offload.{name}", name
import remotegpu.offload
assert remotegpu.offload is new
from remotegpu.offload.wire import peer
assert peer is new.wire.peer
print(len(modules))
"""


@pytest.mark.parametrize("order", ["1", "-1"], ids=["the old name first", "the new name first"])
def test_every_module_is_the_same_object_under_both_names(order: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", SAME, order]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


@pytest.mark.parametrize(
    "line", ["import remotegpu.offload", "from remotegpu.offload.config import load", "from remotegpu import offload"]
)
def test_the_old_name_warns_once_and_says_the_new_one(line: str) -> None:
    told = python(f"{line}\n{line}", "-W", "always::DeprecationWarning")
    assert told.returncode == 0, told.stderr
    warned = [each for each in told.stderr.splitlines() if "DeprecationWarning" in each]
    assert len(warned) == 1 and "import remotegpu_offload" in warned[0]
    assert python(line, "-W", "error::DeprecationWarning").returncode == 1


@pytest.mark.parametrize("places", [[ROOT / "remoting", ROOT / "offload"], [DIST / "python"]], ids=["clone", "dist"])
def test_the_old_name_needs_nothing_that_another_package_imports(places: list[Path]) -> None:
    code = "import sys; sys.path[:0] = sys.argv[1:]; from remotegpu.offload.wire import peer; print(peer.__name__)"
    command = [BARE, "-I", "-S", "-W", "ignore", "-c", code, *map(str, places)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.stdout, done.stderr) == ("remotegpu_offload.wire.peer\n", "")


def test_a_module_that_is_nowhere_is_missing_under_the_old_name_too() -> None:
    done = python("import remotegpu.offload.nowhere")
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'remotegpu.offload.nowhere'"


def test_nothing_of_ours_uses_the_old_name() -> None:
    uses = r"\bremotegpu\.offload\.[a-z]|import.*\bremotegpu\.offload\b"
    command = ["git", "grep", "-nIE", uses, "--", "*.py", "*.sh", "*.yaml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    allowed = tuple(f"offload/tests/core/test_{name}.py" for name in ("old_name", "notebook"))
    assert [
        line for line in done.stdout.splitlines() if not line.startswith(("remoting/remotegpu/offload/", *allowed))
    ] == []


def test_a_pickle_of_before_is_read() -> None:
    rule = FunctionRule("steps.*")
    before = pickle.dumps(rule, protocol=0).replace(b"cremotegpu_offload.", b"cremotegpu.offload.")
    assert b"cremotegpu.offload.config.model" in before
    code = f"import pickle; rule = pickle.loads({before!r}); print(type(rule).__module__, rule.pattern)"
    assert python(code).stdout == "remotegpu_offload.config.model steps.*\n"


def test_a_call_of_a_renamed_module_is_found() -> None:
    before = b"cremotegpu.offload.functions.inference.there\nOpening\n."
    code = f"import pickle; print(pickle.loads({before!r}).__module__)"
    assert python(code).stdout == "remotegpu_offload.functions.inference.acceptor\n"


def test_an_entry_point_of_before_names_the_provisioner() -> None:
    """As in the metadata of an installation that was not made anew."""
    place, kind = "remotegpu.offload.jupyter.provisioner:OffloadProvisioner", "jupyter_client.kernel_provisioners"
    done = python(
        "from importlib.metadata import EntryPoint\n"
        f"found = EntryPoint('remotegpu-provisioner', {place!r}, {kind!r}).load()\n"
        "print(found.__module__, found.__name__)"
    )
    assert done.stdout == f"{OffloadProvisioner.__module__} {OffloadProvisioner.__name__}\n", done.stderr
    assert EntryPoint("remotegpu-provisioner", place.replace("remotegpu.offload", "remotegpu_offload"), kind).load()


def test_an_acceptor_is_started_by_its_old_command_line() -> None:
    connector = LocalAcceptors(program=("-m", "remotegpu.offload.acceptor.session"))
    with local_session(connector=connector) as session:
        assert session.environment.name == "local0"


def test_a_zygote_is_started_by_its_old_command_line() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [
        sys.executable,
        "-P",
        "-s",
        "-m",
        "remotegpu.offload.acceptor.zygote",
        "--control-fd",
        str(theirs.fileno()),
    ]
    with ours:
        with theirs:
            process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), cwd="/")
        received = packets.receive(ours)
    assert received is not None and received[0] == {"op": "ready"}
    assert process.wait(PATIENCE) == 0


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.write("remotegpu.yaml", "version: 1\noffload:\n  - function: steps.where\n")
    made.write("steps.py", "import os\n\ndef where():\n    return os.getpid()\n")
    return made


def start(project: Project, folder: Path, code: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    environment = project.environment() | {"PYTHONPATH": str(folder / "offload" / "sitecustomize")}
    return subprocess.run(
        [python, "-c", code], cwd=project.folder, env=environment, capture_output=True, text=True, timeout=PATIENCE,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize("folder", OLD_STARTS, ids=["clone", "dist", "pod"])
def test_a_search_path_of_before_arms(project: Project, folder: Path) -> None:
    ran = start(project, folder, "import os, steps; print(steps.where() == os.getpid())")
    assert (ran.stdout, ran.stderr) == ("False\n", "")


@pytest.mark.parametrize("folder", OLD_STARTS, ids=["clone", "dist", "pod"])
def test_a_search_path_of_before_arms_where_we_are_not_installed(project: Project, folder: Path) -> None:
    """By what lies beside it, of which the program sees nothing."""
    code = "import json, sys; print(json.dumps([sorted(sys.modules), sys.path]))"
    modules, path = json.loads(start(project, folder, code, BARE).stdout)
    assert "remotegpu_offload.importing.arm" in modules and "remotegpu.offload" not in modules
    assert not {str(folder.parent), str(ROOT / "offload")} & set(path)


def test_a_search_path_of_before_runs_the_users_own_start_once(project: Project, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sitecustomize.py").write_text("print('mine')\n")
    places = os.pathsep.join([str(OLD_STARTS[0] / "offload" / "sitecustomize"), str(tmp_path / "mine")])
    ran = subprocess.run(
        [sys.executable, "-c", "print('program')"],
        env=project.environment() | {"PYTHONPATH": places}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ran.stdout == "mine\nprogram\n"
