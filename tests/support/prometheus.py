"""Runs a Prometheus server on loopback."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from support.system import ROOT, free_port

FOLDER = ROOT / "target" / "prometheus" / "usr" / "bin"
PROGRAM, PROMTOOL = (
    shutil.which(name, path=f"{FOLDER}:/usr/bin:/usr/local/bin") or "" for name in ("prometheus", "promtool")
)
MISSING = "" if PROGRAM and PROMTOOL else "no Prometheus: run tools/prometheus.sh (docs/testing.md)"

Query = Callable[[str], Any]


@contextlib.contextmanager
def prometheus(folder: Path, config: dict[str, Any]) -> Iterator[Query]:
    """Yields a function that queries a path below /api/v1/. Its data stays in `folder`/data for later runs."""
    file = folder / "prometheus.yaml"
    file.write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    options = [f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}"]

    def ask(path: str) -> Any:
        with urllib.request.urlopen(f"http://{address}/api/v1/{path}", timeout=10) as answer:
            return json.loads(answer.read())["data"]

    with (folder / "log").open("wb") as log, subprocess.Popen([PROGRAM, *options], stdout=log, stderr=log) as running:
        try:
            yield ask
        finally:
            running.terminate()
