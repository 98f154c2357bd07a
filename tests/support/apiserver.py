"""Runs a real API server and its etcd on loopback, for tests of CRDs, admission and the operator's logic.

There are no controllers, no scheduler and no nodes: a pod stays as it was written, and a deleted namespace stays
Terminating. Pods need no ServiceAccount object, since no controller creates the default ones.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster.addresses import IPV4, Network
from cluster.certificates import kubeconfig
from cluster.control_plane import PROGRAMS, VERSIONS, ControlPlane
from support.system import free_port, until

START_SECONDS = 60
STOP_SECONDS = 20


def _missing(version: str = "1.34") -> str:
    """Returns the program that is missing to start an API server; empty if none is missing."""
    if shutil.which("etcd") is None:
        return "etcd is not installed; `make cluster-programs` installs it where it is run by root"
    if not (PROGRAMS / VERSIONS[version]).exists():
        return f"{PROGRAMS / VERSIONS[version]} is not built; `make cluster-programs` builds it"
    return ""


class ApiServer:
    def __init__(self, version: str, plane: ControlPlane, pid: int) -> None:
        self.version = version
        self.pid = pid
        self.url = plane.url
        self.kubeconfig = plane.admin
        self.ca = (plane.certificates / "ca.crt").read_bytes()
        self.ca_file = plane.certificates / "ca.crt"
        self._folder = plane.folder

    def kubectl(
        self, *arguments: str, stdin: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Runs kubectl as the administrator. Without `check`, returns a failed result too; `stderr` has its error."""
        result = subprocess.run(
            [PROGRAMS / "kubectl", f"--kubeconfig={self.kubeconfig}", *arguments],
            capture_output=True,
            text=True,
            input=stdin,
        )
        assert not check or result.returncode == 0, f"kubectl {' '.join(arguments)}: {result.stderr}"
        return result

    def apply(self, *objects: dict[str, Any]) -> None:
        content = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(content))

    def token(self, namespace: str, account: str, audience: str = "", pod: tuple[str, str] | None = None) -> str:
        """Returns a token of an existing service account, bound to `pod` (name and uid) if it is given."""
        arguments = ["create", "token", account, f"--namespace={namespace}"]
        if audience:
            arguments.append(f"--audience={audience}")
        if pod:
            arguments += ["--bound-object-kind=Pod", f"--bound-object-name={pod[0]}", f"--bound-object-uid={pod[1]}"]
        return self.kubectl(*arguments).stdout.strip()

    def kubeconfig_of(self, namespace: str, account: str) -> Path:
        """Returns a kubeconfig of a service account, which has only the permissions of its RBAC rules.

        Creates the account if it is missing.
        """
        for kind, name, where in (("Namespace", namespace, {}), ("ServiceAccount", account, {"namespace": namespace})):
            self.apply({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, **where}})
        file = self._folder / f"{namespace}.{account}.kubeconfig"
        file.touch(mode=0o600)
        file.write_text(kubeconfig(self.url, self.ca, self.token(namespace, account)))
        return file


@contextlib.contextmanager
def api_server(version: str = "1.34", *more: str, networks: tuple[Network, ...] = (IPV4,)) -> Iterator[ApiServer]:
    """Runs an API server of "1.34" or of the "newest" minor version, with `more` flags. Deletes its data at the end.

    `networks` has its address families; it listens on the loopback address of the first. Skips the test if the API
    server is not built.

    The test is skipped where none is built.
    """
    if reason := _missing(version):
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="remotegpu-apiserver-") as name, contextlib.ExitStack() as running:
        address = "127.0.0.1" if networks[0].version == 4 else "::1"
        plane = ControlPlane(Path(name), address=address, port=free_port(), etcd_port=free_port(), networks=networks)
        plane.make_certificates()
        # No Service `kubernetes` is created, since its endpoint may not be a loopback address.
        flags = ["--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none", *more]
        etcd = running.enter_context(_running("etcd", plane.etcd(), plane.folder))
        server = running.enter_context(_running("apiserver", plane.apiserver(version, *flags), plane.folder))
        result = ApiServer(version, plane, server.pid)

        def ready() -> bool:
            for program, process in (("etcd", etcd), ("apiserver", server)):
                assert process.poll() is None, (
                    f"{program} ended: {(plane.folder / f'{program}.log').read_text()[-3000:]}"
                )
            return result.kubectl("get", "--raw", "/readyz", check=False).returncode == 0

        until(ready, START_SECONDS, f"the API server {version} is ready")
        until(lambda: "default" in result.kubectl("get", "namespaces").stdout, START_SECONDS, "the namespace default")
        yield result


@contextlib.contextmanager
def _running(name: str, command: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / f"{name}.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
