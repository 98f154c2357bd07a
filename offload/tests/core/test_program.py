"""Whole programs in an acceptor (program mode) that cannot see their folder: they say, write and end as locally."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from offload_programs import Project, same

# Each test runs programs several times, on machines that may be busy with other things.
pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize("name", ["package", "numbers", "table", "learn", "compiled", "files"])
def test_programs_run_in_an_acceptor_as_locally(tmp_path: Path, name: str) -> None:
    project = Project(tmp_path, name)
    local = project.local("main.py", "an argument")
    assert local.returncode == 0, local.stderr
    written = project.take("out")
    (project.folder / "out").mkdir()
    remote = project.offloaded("main.py", "an argument")
    same(local, remote)
    found = project.files("out")
    assert sorted(found) == sorted(path for path in written if path != "keep")
    # Pickles of the same objects may differ in how often a string is written.
    for path in found.keys() - {"model.joblib", "people.pkl"}:
        assert found[path] == written[path], path


ENDINGS = {
    "a code": "import sys; sys.exit(3)",
    "a large code": "import sys; sys.exit(259)",
    "no code": "raise SystemExit",
    "a message": "import sys; print('out'); sys.exit('the message')",
    "an error": "def f(n):\n    return 1 / n\n\nprint('before')\nf(0)\n",
    "a chain": "try:\n    {}['a']\nexcept KeyError as error:\n    raise ValueError('b') from error\n",
    "a note": "error = OSError(2, 'x')\nerror.add_note('noted')\nraise error\n",
    "an assertion of several lines": "assert (\n    1 ==\n    2\n), 'no'\n",
    "the end of its input": "print('before')\nname = input('name? ')\n",
    "a group": "raise ExceptionGroup('two', [ValueError(1), TypeError(2)])\n",
    "at once": "import os; print('kept', flush=True); print('lost'); os._exit(9)",
    "exit functions": "import atexit, sys\n"
    "atexit.register(print, 'one')\natexit.register(lambda: print('two'))\nsys.exit(4)",
    "a failing exit function": "import atexit\natexit.register(lambda: 1 / 0)\nprint('x')",
    "threads": "import threading, time\n"
    "def work():\n    time.sleep(0.2)\n    print('late')\n"
    "threading.Thread(target=work).start()\nprint('early')\n",
    "a thread that fails": "import threading\n"
    "t = threading.Thread(target=lambda: {}['k'], name='worker')\nt.start(); t.join()",
    "its own excepthook": "import sys\n"
    "sys.excepthook = lambda kind, error, tb: print('mine', kind.__name__, tb.tb_lineno)\n1/0",
    "a pool that nobody closes": "from concurrent.futures import ThreadPoolExecutor\n"
    "p = ThreadPoolExecutor(2)\np.submit(print, 'in the pool')\n",
    "a syntax error": "x = 1\nif x\n    pass\n",
    "an indentation error": "def f():\nreturn 1\n",
    "recursion": "import sys\nsys.setrecursionlimit(200)\ndef f(): f()\nf()\n",
}


@pytest.mark.parametrize("source", ENDINGS.values(), ids=ENDINGS.keys())
def test_a_program_ends_as_locally(project: Project, source: str) -> None:
    project.write("main.py", source)
    same(project.local("main.py"), project.offloaded("main.py"))


def test_errors_in_modules_show_the_users_source(project: Project) -> None:
    project.write("pkg/__init__.py", "from .inner import fail\n")
    project.write(
        "pkg/inner.py", "def fail(n):\n    if not n:\n        raise RuntimeError('deep')  # here\n    fail(n - 1)\n"
    )
    project.write("main.py", "import pkg\n\npkg.fail(2)\n")
    same(project.local("main.py"), project.offloaded("main.py"))
    project.write("pkg/inner.py", "import nowhere_at_all\n")
    local, remote = project.local("main.py"), project.offloaded("main.py")
    assert remote.returncode == local.returncode == 1
    # The same, and one line more: what to do.
    assert remote.stderr.startswith(local.stderr.rstrip("\n"))
    (note,) = remote.stderr[len(local.stderr.rstrip("\n")) :].strip().splitlines()
    assert note.startswith("remotegpu: nowhere_at_all is neither installed in the acceptor's environment nor served")
    project.write("pkg/inner.py", "def broken(:\n    pass\n")
    same(project.local("main.py"), project.offloaded("main.py"))


def test_modules_and_commands_run_as_with_python(project: Project) -> None:
    project.write("tool/__init__.py", "")
    project.write("tool/other.py", "VALUE = 5\n")
    project.write(
        "tool/run.py",
        "import sys\nfrom .other import VALUE\nprint(__name__, __package__, VALUE, sys.argv, __spec__.name)\n",
    )
    project.write("tool/__main__.py", "from . import other\nprint('as a package', other.VALUE)\n")
    for arguments in (
        ["-m", "tool.run", "x", "-y"],
        ["-m", "tool"],
        ["-m", "json.tool", "--help"],
        ["-m", "tool.nothing"],
        ["-c", "import sys, tool.other; print(sys.argv, __name__, tool.other.VALUE)", "a"],
        ["-c", "1/0"],
        ["tool"],
    ):
        local, remote = project.local(*arguments), project.offloaded(*arguments)
        if arguments != ["tool"]:
            same(local, remote)
        # A folder is run as its __main__.py, which has no package around it.
        assert (local.returncode, "ImportError" in local.stderr) == (remote.returncode, "ImportError" in remote.stderr)


PROCESSES = """
import multiprocessing, os, sys
from concurrent.futures import ProcessPoolExecutor
import tasks

def square(n):
    return n * n + tasks.OFFSET, open("data.txt").read()

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with context.Pool(2) as pool:
            print(method, pool.map(square, range(3)))
        with ProcessPoolExecutor(2, mp_context=context) as pool:
            print(method, list(pool.map(tasks.name_of, [int, str])))
        process = context.Process(target=tasks.speak, args=(method,))
        process.start()
        process.join()
        print(process.exitcode)
    if os.fork() == 0:
        print("child", flush=True)
        sys.exit(7)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_multiprocessing_works_in_an_acceptor(project: Project) -> None:
    project.write("main.py", PROCESSES)
    project.write("data.txt", "some data")
    project.write(
        "tasks.py",
        "import sys\nOFFSET = 100\n\ndef name_of(kind):\n    return kind.__name__\n\n"
        "def speak(word):\n    print('spoken', word, flush=True)\n    sys.exit(5)\n",
    )
    project.write("remotegpu.yaml", 'version: 1\nfiles: {read: ["data.txt"]}\n')
    local = project.local("main.py")
    assert local.returncode == 0, local.stderr
    same(local, project.offloaded("main.py"))


def test_what_may_cross_of_the_environment(project: Project) -> None:
    project.write("main.py", "import os\nprint(os.environ.get('MYAPP_X'), os.environ.get('SECRET'))\n")
    project.write("remotegpu.yaml", 'version: 1\nenv: {pass: ["MYAPP_*"]}\n')
    remote = project.offloaded("main.py", environment={"MYAPP_X": "1", "SECRET": "2"})
    assert (remote.stdout, remote.stderr) == ("1 None\n", "")


def test_a_dead_acceptor_is_reported(project: Project) -> None:
    project.write("main.py", "import os, signal\nprint('alive', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n")
    remote = project.offloaded("main.py")
    assert remote.stdout == "alive\n"
    assert remote.returncode == 69
    assert remote.stderr.startswith("remotegpu: acceptor here")


def test_a_missing_script_is_reported_as_python_does(project: Project) -> None:
    same(project.local("nowhere.py"), project.offloaded("nowhere.py"))
    for arguments, name in (([], "script"), (["--split", "quantum", "x.py"], "quantum"), (["-x"], "script")):
        remote = project.offloaded(*arguments)
        assert remote.returncode == 2
        assert name in remote.stderr.lower(), remote.stderr


def test_a_wrong_configuration_is_one_sentence(project: Project) -> None:
    project.write("main.py", "print('not run')\n")
    project.write("remotegpu.yaml", "version: 1\nfils: {}\n")
    remote = project.offloaded("main.py")
    assert (remote.returncode, remote.stdout) == (2, "")
    (line,) = remote.stderr.splitlines()
    assert line.startswith("remotegpu: ") and "fils" in line


def test_an_unreadable_main_is_refused_like_pythons(project: Project, tmp_path: Path) -> None:
    (project.folder / "main.py").mkdir()
    local, remote = project.local("main.py"), project.offloaded("main.py")
    assert remote.returncode != 0 and local.returncode != 0
    assert "main.py" in remote.stderr


@pytest.mark.parametrize("split", ["rules", "torch"])
def test_without_rules_a_program_runs_here_as_with_python(project: Project, split: str) -> None:
    project.write("remotegpu.yaml", "version: 1\noffload: []\n")
    project.write("aside.py", "def f(n):\n    return 1 / n\n")
    for source in list(ENDINGS.values())[:7]:
        project.write("main.py", source)
        same(project.local("main.py"), project.offloaded("main.py", split=split))
    project.write("main.py", "import sys, aside\nprint(sys.argv, sys.path[0], __file__, __spec__)\naside.f(0)\n")
    same(project.local("main.py", "--split"), project.offloaded("main.py", "--split", split=split))


def test_what_an_environment_has_imported_before_opens_the_clients_files(project: Project, tmp_path: Path) -> None:
    """Imports packages before the session begins, as the environments of an appliance do."""
    with (tmp_path / "blind" / "sitecustomize.py").open("a") as file:
        file.write("import bz2, tokenize, numpy.lib._datasource\n")
    project.write("remotegpu.yaml", "version: 1\nfiles: {read: ['./data/**'], write: ['./data/**']}\n")
    project.write("data/table.csv", "1,2\n3,4\n")
    project.write(
        "main.py",
        textwrap.dedent(
            """
            import bz2, tokenize
            import numpy as np
            print(np.loadtxt("data/table.csv", delimiter=","), np.genfromtxt("data/table.csv", delimiter=","))
            with bz2.open("data/table.bz2", "wt") as file:
                file.write("5,6")
            print(np.loadtxt("data/table.bz2", delimiter=","), tokenize.open("data/table.csv").read())
            """
        ),
    )
    same(project.local("main.py"), project.offloaded("main.py"))


def test_a_named_temporary_file_is_removed_here(project: Project) -> None:
    project.write(
        "main.py",
        "import os, tempfile\n"
        "os.makedirs('out', exist_ok=True)\n"
        "with tempfile.NamedTemporaryFile('w+', dir='out') as file:\n"
        "    file.write('kept?')\n"
        "    file.flush()\n"
        "    print(os.listdir('out') == [os.path.basename(file.name)], open(file.name).read())\n"
        "print(os.listdir('out'))\n"
        "left = tempfile.NamedTemporaryFile(dir='out')\n"
        "del left\n"
        "print(os.listdir('out'))\n"
        "left = tempfile.NamedTemporaryFile(dir='out')\n",
    )
    project.write("remotegpu.yaml", "version: 1\nfiles: {read: ['./out/**'], write: ['./out/**', out]}\n")
    remote = project.offloaded("main.py")
    assert (remote.stdout, remote.stderr) == ("True kept?\n[]\n[]\n", "")
    assert not list((project.folder / "out").iterdir())


def test_at_the_end_files_are_flushed_and_finalizers_run(project: Project) -> None:
    """Covers modules that the main one imports, and a program that ends with an error."""
    project.write(
        "held.py",
        "class Held:\n"
        "    def __init__(self, name): self.name = name\n"
        "    def __del__(self): print('gone', self.name)\n"
        "mine = Held('of the module')\n"
        "notes = open('out/notes.txt', 'w')\n"
        "print('noted', file=notes)\n",
    )
    project.write(
        "main.py",
        "import held\n"
        "def use(): return first, cycle, file\n"
        "first, cycle = held.Held('first'), [held.Held('in a cycle')]\n"
        "cycle.append(cycle)\n"
        "file = open('out/rows.bin', 'wb')\n"
        "file.write(b'rows')\n"
        "print('end')\n"
        "1 / 0\n",
    )
    project.write("remotegpu.yaml", "version: 1\nfiles: {read: ['./out/**'], write: ['./out/**']}\n")
    out = project.folder / "out"
    out.mkdir()
    ran = []
    for run in (project.local, project.offloaded):
        done = run("main.py")
        ran.append((sorted(done.stdout.splitlines()), done.stderr, done.returncode))
        assert {each.name: each.read_bytes() for each in out.iterdir()} == {
            "notes.txt": b"noted\n",
            "rows.bin": b"rows",
        }
        for each in out.iterdir():
            each.unlink()
    assert ran[0] == ran[1]
    assert ran[1][0] == ["end", "gone first", "gone in a cycle", "gone of the module"]


def test_modules_are_loaded_from_files_and_from_relative_folders(project: Project) -> None:
    project.write("plugins/plug.py", "VALUE = 7\n")
    project.write("more/other.py", "def f(x):\n    return x * 2\n")
    project.write("remotegpu.yaml", "version: 1\nfiles: {read: ['./**']}\n")
    project.write(
        "main.py",
        textwrap.dedent(
            """
            import importlib.machinery, importlib.util, inspect, os, pkgutil, runpy, sys
            for path in ("plugins/plug.py", os.path.abspath("plugins/plug.py")):
                spec = importlib.util.spec_from_file_location("plug", path)
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
                print(module, module.VALUE, inspect.getsource(module))
                print(runpy.run_path(path)["VALUE"])
            print(importlib.machinery.SourceFileLoader("x", "more/other.py").get_data("more/other.py"))
            sys.path.append("more")
            import other
            print(other.f(4), other.__file__, [name for _, name, _ in pkgutil.iter_modules(["plugins"])])
            os.chdir("plugins")
            sys.path.insert(0, ".")
            import plug
            print(plug.__file__)
            """
        ),
    )
    same(project.local("main.py"), project.offloaded("main.py"))
