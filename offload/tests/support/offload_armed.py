"""A process whose `cuda` is the remote device, for tests; and whole programs, run here and offloaded."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from offload_local import LocalAcceptors, local_session

from remotegpu_offload.client.session import Session
from remotegpu_offload.config.model import Config
from remotegpu_offload.torch.script import names
from remotegpu_offload.torch.stream import link

PROGRAMS = Path(__file__).resolve().parents[1] / "torch" / "programs"

_CONNECT = f"""#!/bin/sh
exec {sys.executable} {Path(__file__).with_name("connect_here.py")} "$@"
"""
# Like `launch`, and it records what crossed.
_RUN = """
import json, sys
from remotegpu_offload import launch
from remotegpu_offload.client import session
close, told = session.Session.close, sys.argv[1]
def noted(self):
    if not self._closed:
        with open(told, "w") as file:
            json.dump(self.counters(), file)
    close(self)
session.Session.close = noted
sys.path.insert(0, "")
launch.main(sys.argv[2:])
"""


def arm(config: Config | None = None, connector: LocalAcceptors | None = None) -> Iterator[Session]:
    """For fixtures: `cuda`, `xpu` and `mps` are the device of a real acceptor process on the CPU. Once in a process."""
    torch.set_num_threads(1)
    with local_session(config, connector=connector) as session:
        names.arm(("cuda", "xpu", "mps"), lambda: session)
        link.remote()
        yield session


@pytest.fixture(scope="session")
def armed() -> Iterator[Session]:
    yield from arm()


def trips(session: Session) -> int:
    """Round trips to the torch device so far."""
    return int(session.counters()["by_service"].get("TORCH", 0))


class Programs:
    """Runs the programs of the folder `programs`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.connect = folder / "connect"
        self.connect.write_text(_CONNECT)
        self.connect.chmod(0o755)

    def on_cpu(self, program: str, *options: str) -> dict[str, Any]:
        """Runs a program on this machine's CPU, and returns what it writes."""
        return self._run([str(PROGRAMS / f"{program}.py")], "cpu", options)

    def on_remote(self, program: str, *options: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Runs a program, unmodified, with its `cuda` in an acceptor; returns what it writes, and what crossed."""
        counters = self.folder / "counters.json"
        found = self._run(["-c", _RUN, str(counters), str(PROGRAMS / f"{program}.py")], "cuda", options)
        return found, json.loads(counters.read_text())

    def _run(self, command: list[str], device: str, options: tuple[str, ...]) -> dict[str, Any]:
        result = self.folder / f"{device}.json"
        environment = os.environ | {
            "REMOTEGPU_CONNECT": str(self.connect),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "OMP_NUM_THREADS": "1",
        }
        subprocess.run(
            [sys.executable, *command, "--device", device, "--json", str(result), *options],
            check=True,
            env=environment,
            cwd=self.folder,
            timeout=600,
        )
        found: dict[str, Any] = json.loads(result.read_text())
        return found


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path)
