"""The process of an application: confines itself, arms the imports, and then runs the program."""

import atexit
import json
import os
import runpy
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from remotegpu_offload.reverse import confine
from remotegpu_offload.reverse.fetch import Fetcher, Server
from remotegpu_offload.reverse.manifest import parse
from remotegpu_offload.reverse.opening import _TOKEN, Plan
from remotegpu_offload.reverse.store import Pages
from remotegpu_offload.reverse.tree import Tree


def main() -> None:
    """Runs an application. `sys.argv[1]` is a Plan as JSON."""
    plan = Plan(**json.loads(sys.argv[1]))
    manifest = parse(Path(plan.manifest).read_bytes())
    cache = Path(plan.cache)
    scratch = tempfile.mkdtemp(prefix="remotegpu-app-")
    if plan.confined:
        _when_this_ends(lambda: shutil.rmtree(scratch, ignore_errors=True))
    else:
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    tempfile.tempdir = os.environ["TMPDIR"] = scratch
    server = Server(plan.url, Path(plan.ca) if plan.ca else None, os.environ.pop(_TOKEN, ""))
    fetcher = Fetcher(server, Pages(cache))
    if plan.stats:
        # Opened before the files are restricted, because remotegpu writes the report, not the application.
        report = Path(plan.stats).open("w")  # noqa: SIM115 (open until the end)
        atexit.register(_report, report, fetcher, plan)
    # This package's folder was first on the path only to import this module.
    root = sys.path.pop(0)
    readable = [Path(root), cache, Path(plan.manifest), *([server.ca] if server.ca else [])]
    if plan.confined:
        for folder in confine.folders(manifest.permissions.write, Path(plan.base)):
            # A folder that does not exist cannot be opened for the application, and the application may not create it
            # next to other files of the user.
            folder.mkdir(parents=True, exist_ok=True)
        confine.confine(
            manifest.permissions,
            Path(plan.base),
            readable=readable,
            writable=[cache / "pages", Path(plan.root), Path(scratch)],
        )

    def fetch(paths: Iterable[str]) -> None:
        fetcher.fetch(manifest.files, paths)

    Tree(manifest, Path(plan.root), fetch).arm()
    program = str(Path(plan.root, manifest.entry))
    sys.argv[:] = [program, *plan.arguments]
    runpy.run_path(program, run_name="__main__")


def _when_this_ends(do: Callable[[], None]) -> None:
    """Calls `do` after this process has ended, in a process that is not a child of the application.

    The application's own processes are confined and could not remove its folder.
    """
    watched, held = os.pipe()
    child = os.fork()
    if child:
        # The pipe's end `held` stays open until this process ends in any way.
        os.close(watched)
        os.waitpid(child, 0)
        return
    if os.fork():
        os._exit(0)
    os.setsid()
    os.close(held)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    os.read(watched, 1)
    do()
    os._exit(0)


def _report(file: object, fetcher: Fetcher, plan: Plan) -> None:
    json.dump({"trips": plan.trips + fetcher.trips, "bytes_in": plan.bytes_in + fetcher.bytes_in}, file)  # type: ignore[arg-type]
    file.close()  # type: ignore[attr-defined]
