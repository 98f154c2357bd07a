"""Runs the webhook in its own processes, for a test's API server, with the admission objects of the chart."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from cluster.certificates import Authority
from support.apiserver import ApiServer
from support.chart import CHART, NAMESPACE, Object, helm
from support.kubectl import as_list
from support.system import free_port, until

from remotegpu.api.kubernetes import CONVERTED_ANNOTATION

OPERATOR = f"system:serviceaccount:{NAMESPACE}:remotegpu-operator"
START_SECONDS = 30

# kubectl's arguments to act as the operator, and the operator's patch of a pod that has its share.
AS_OPERATOR = (f"--as={OPERATOR}", "--as-group=system:masters")
LIFT = json.dumps([{"op": "remove", "path": "/spec/schedulingGates"}])


@dataclass
class Replica:
    """A webhook process on loopback: `port` serves admission, `http_port` health and metrics."""

    port: int
    http_port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def get(self, path: str) -> tuple[int, str]:
        """Requests a path of the plain port. Returns status and body; status 0 if no process listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}") as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except (urllib.error.URLError, ConnectionError):
            return 0, ""


@contextlib.contextmanager
def replica(certificates: Path, *more: str, port: int = 0, ready: bool = True) -> Iterator[Replica]:
    """Runs a replica with the certificate in a folder and `more` arguments. Waits until it is ready or healthy."""
    http_port = free_port()
    port = port or free_port()
    command = [sys.executable, "-m", "remotegpu_operator.webhook", "--host=127.0.0.1", f"--port={port}"]
    command += [f"--http-port={http_port}", f"--tls={certificates}", "--drain=0", *more]
    file = certificates / f"{http_port}.log"
    with file.open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        it = Replica(port, http_port, process, file)
        try:
            until(lambda: it.get("/readyz" if ready else "/healthz")[0] == 200, START_SECONDS, "the webhook answers")
            yield it
        finally:
            process.terminate()
            process.wait(START_SECONDS)


def issue(folder: Path) -> bytes:
    """Writes a certificate for loopback into `folder`, like the Secret's volume. Returns the certificate of its CA."""
    authority = Authority("the webhook's authority")
    authority.issue("webhook", subjects=("127.0.0.1",)).write(folder, "tls")
    return authority.certificate


def admission_objects() -> list[Object]:
    """Returns the chart's admission objects: the webhooks' configuration, the policy and its binding."""
    show = [f"--show-only=templates/webhook/{name}.yaml" for name in ("configuration", "policy")]
    where = ["--namespace", NAMESPACE, "--kube-version=1.34.0"]
    text = helm("template", "remotegpu", str(CHART), *where, *show).stdout
    return [document for document in yaml.safe_load_all(text) if document]


@dataclass
class Admission:
    """Installs the admission objects in an API server, with `replica` in place of the chart's Service."""

    server: ApiServer
    replica: Replica
    authority: bytes

    def install(self) -> None:
        """Installs the objects, and waits until the API server applies them, some time after it has stored them."""
        _, *policy = admission_objects()
        self.server.apply(*policy)
        self._until("ValidatingAdmissionPolicy")
        self.call(self.replica.url)

    def call(self, url: str, *, answers: bool = True) -> None:
        """Makes the API server call the webhook at `url`. `answers` says whether a webhook runs there."""
        webhooks, *_ = admission_objects()
        for entry in webhooks["webhooks"]:
            path = entry["clientConfig"]["service"]["path"]
            entry["clientConfig"] = {"url": url + path, "caBundle": b64encode(self.authority).decode()}
        self.server.apply(webhooks)
        self._until("created" if answers else "connection refused")

    def _until(self, word: str) -> None:
        default = Space(self.server, "default")
        until(lambda: word in default.answer(pod("probe", {"remotegpu/milli": 1})), START_SECONDS, f"{word!r} is said")


class Space:
    """A namespace for one test."""

    def __init__(self, server: ApiServer, name: str = "") -> None:
        self.server = server
        self.name = name or f"t-{uuid.uuid4().hex[:8]}"
        if not name:
            server.kubectl("create", "namespace", self.name)

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        return self.server.kubectl("-n", self.name, *arguments, stdin=stdin, check=check).stdout

    def refusal(self, *arguments: str, stdin: str | None = None) -> str:
        """Runs kubectl and returns its stderr. Fails if the request is not refused."""
        result = self.server.kubectl("-n", self.name, *arguments, stdin=stdin, check=False)
        assert result.returncode, f"{' '.join(arguments)} was not refused: {result.stdout}"
        return result.stderr.strip()

    def create(self, *objects: Object) -> list[Object]:
        return self._stored("create", objects)

    def apply(self, *objects: Object, server_side: bool = False) -> list[Object]:
        return self._stored("apply", objects, *(["--server-side"] if server_side else []))

    def answer(self, document: Object) -> str:
        """Creates the object as a dry run. Returns kubectl's output."""
        command = ["-n", self.name, "create", "-f", "-", "--dry-run=server"]
        result = self.server.kubectl(*command, stdin=json.dumps(document), check=False)
        return result.stdout + result.stderr

    def refused(self, document: Object, *more: str) -> str:
        return self.refusal("create", "-f", "-", *more, stdin=json.dumps(document))

    def diff(self, *objects: Object, server_side: bool = False) -> int:
        """Returns the exit status of kubectl diff; 0 if nothing would change."""
        flags = ["--server-side"] if server_side else []
        command = ["-n", self.name, "diff", "-f", "-", *flags]
        return self.server.kubectl(*command, stdin=as_list(objects), check=False).returncode

    def get(self, kind: str, name: str) -> Object:
        found: Object = json.loads(self.kubectl("get", kind, name, "-o", "json", "--show-managed-fields"))
        return found

    def _stored(self, verb: str, objects: Sequence[Object], *more: str) -> list[Object]:
        # YAML, since `-o json` prints a list for apply, but several documents for create.
        found = list(yaml.safe_load_all(self.kubectl(verb, "-f", "-", "-o", "yaml", *more, stdin=as_list(objects))))
        return found[0]["items"] if found[0]["kind"] == "List" else found


def converted(stored: Object) -> dict[str, str]:
    """Returns the thousandths by container from the webhook's annotation about converted fractions."""
    mark = stored["metadata"].get("annotations", {}).get(CONVERTED_ANNOTATION, '{"milli": {}}')
    milli: dict[str, str] = json.loads(mark)["milli"]
    return milli


def other_annotations(stored: Object) -> dict[str, str]:
    """Returns the annotations without the webhook's one about converted fractions."""
    notes: dict[str, str] = stored["metadata"].get("annotations", {})
    return {key: value for key, value in notes.items() if key != CONVERTED_ANNOTATION}


def pod(name: str, limits: Mapping[str, Any] | None = None, **metadata: Mapping[str, str]) -> Object:
    """Returns a pod with one container, `app`, and the service account that a controller would otherwise set."""
    container = {"name": "app", "image": "none", "resources": {"limits": dict(limits or {})}}
    spec = {"serviceAccountName": "default", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}
