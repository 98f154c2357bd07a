"""Runs a device plugin in its own process, with a stand-in kubelet."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from support.apiserver import ApiServer
from support.kubelet import Kubelet
from support.system import free_port, until

SECONDS = 30


class Node:
    """The folders of one node. `run` starts the plugin on the node, any number of times."""

    def __init__(self, folder: Path) -> None:
        self.plugins = folder / "plugins"
        self.files = folder / "files"
        self.dist = folder / "dist"
        self.log = folder / "log"
        self.kubelet = Kubelet(self.plugins)
        self.http = f"127.0.0.1:{free_port()}"
        self.write_client("first")

    def write_client(self, content: str) -> None:
        """Writes a client of a release, as far as the plugin needs it: the plugin does not read the files."""
        pod = self.dist / "pod"
        (pod / "lib").mkdir(parents=True, exist_ok=True)
        (pod / "lib" / "libcuda.so.1").write_text(content)
        link = pod / "lib" / "libcuda.so"
        link.unlink(missing_ok=True)
        link.symlink_to("libcuda.so.1")

    @contextlib.contextmanager
    def run(self, kubeconfig: Path, http: str = "", patience: int = 0) -> Iterator[subprocess.Popen[bytes]]:
        """Runs the plugin during the block. On SIGTERM it waits `patience` seconds for its successor."""
        command = [sys.executable, "-m", "remotegpu_deviceplugin", "--kubelet", str(self.plugins)]
        command += ["--files", str(self.files), "--http", http or self.http, "--patience", str(patience)]
        environment = os.environ | {"KUBECONFIG": str(kubeconfig), "REMOTEGPU_DIST": str(self.dist)}
        with self.log.open("ab") as log, subprocess.Popen(command, env=environment, stderr=log) as process:
            try:
                yield process
            finally:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()

    def heard(self, resource: str, count: int) -> None:
        """Waits until kubelet's last list of the resource has `count` devices."""
        until(
            lambda: self.kubelet.heard.get(resource, [-1])[-1] == count,
            SECONDS,
            f"{resource} is {count}, not {self.kubelet.heard.get(resource)}; {self.log.read_text()}",
        )

    def logged(self, sentence: str) -> None:
        until(lambda: sentence in self.log.read_text(), SECONDS, f"{sentence!r} in the log: {self.log.read_text()}")

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}") as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


def set_pool(server: ApiServer, name: str, milli: int, backend: str = "software") -> None:
    metadata = {"name": name}
    server.apply(
        {"apiVersion": "remotegpu.io/v1alpha1", "kind": "GPUPool", "metadata": metadata, "spec": {"backend": backend}}
    )
    patch = json.dumps({"status": {"total": {"milli": milli}}})
    server.kubectl("patch", "gpupool", name, "--subresource=status", "--type=merge", "-p", patch)
