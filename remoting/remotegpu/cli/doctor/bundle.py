"""The bundle of `remotegpu doctor`: an archive with the data for a bug report, without secrets."""

import base64
import io
import json
import os
import platform
import re
import sys
import tarfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from remotegpu import __version__
from remotegpu.api import names
from remotegpu.api.failures import ApplianceError
from remotegpu.api.kubernetes import API_VERSION, CLAIMS, NAME_LABEL, POOLS
from remotegpu.cli import exits
from remotegpu.cli.cluster.objects import Cluster, Object, RefusedError
from remotegpu.cli.show import describe, inventories
from remotegpu.rpc import WIRE_VERSION
from remotegpu.rpc.client import Access

_GONE: Final = "(removed)"
# Shorter words are not removed, since other texts have them by chance.
_LEAST_SECRET: Final = 6
_OURS: Final = f"{NAME_LABEL}=remotegpu"
_LOG_LINES: Final = 2000
_FILE_NAME: Final = str.maketrans("/:[]", "____")

# Patterns of any secrets. The first group of a match stays.
_SHAPES: Final = (
    re.compile(r"()-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    # Tokens of Kubernetes.
    re.compile(r"()\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),
    re.compile(r"(?i)(\bbearer )\S+"),
    re.compile(r"""(?i)((?:token|secret|password|key)["']?\s*[:=]\s*["']?)[^\s"',}]{6,}"""),
    # A lease's secret or a ticket: 16 or 32 bytes in hexadecimal. The digest of an image is not a secret.
    re.compile(r"()(?<!sha256:)\b(?:[0-9a-f]{64}|[0-9a-f]{32})\b"),
)

_LISTS: Final = {
    "pools": (f"/apis/{API_VERSION}/{POOLS}", ""),
    "claims": (f"/apis/{API_VERSION}/{CLAIMS}", ""),
    "deployments": ("/apis/apps/v1/deployments", _OURS),
    "daemonsets": ("/apis/apps/v1/daemonsets", _OURS),
    "pods": ("/api/v1/pods", _OURS),
    "nodes": ("/api/v1/nodes", ""),
}


class Redactor:
    """Removes known secrets from texts, and everything that looks like a secret."""

    def __init__(self, secrets: Iterable[str]) -> None:
        """Takes texts whose words are secrets, such as the content of a token file."""
        words = {word for text in secrets for word in _words(text) if len(word) >= _LEAST_SECRET}
        encoded = {base64.b64encode(word.encode()).decode() for word in words}
        # The longest first, since one secret may be the beginning of another.
        self._words = sorted(words | encoded, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for word in self._words:
            text = text.replace(word, _GONE)
        for shape in _SHAPES:
            text = shape.sub(rf"\g<1>{_GONE}", text)
        return text


def _words(text: str) -> Iterator[str]:
    """Yields the words of a text, and for `name:token` also the token."""
    for word in text.split():
        yield word
        yield word.rpartition(":")[2]


def write_bundle(
    file: Path, report: dict[str, Any], appliances: Sequence[str], access: Access, cluster: Cluster | None
) -> None:
    contents = {"checks.json": json.dumps(report, indent=1), "machine.json": json.dumps(_machine(), indent=1)}
    for text in appliances:
        contents[f"appliances/{text.translate(_FILE_NAME)}.json"] = _appliance(text, access)
    if cluster is not None:
        contents |= {f"cluster/{name}": text for name, text in _cluster(cluster)}
    redact = Redactor(_secrets(access))
    try:
        with file.open("xb") as opened, tarfile.open(mode="w:gz", fileobj=opened) as archive:
            for name, text in sorted(contents.items()):
                entry = tarfile.TarInfo(f"remotegpu-doctor/{name}")
                content = redact(text).encode()
                entry.size, entry.mtime = len(content), int(time.time())
                archive.addfile(entry, io.BytesIO(content))
    except FileExistsError:
        raise exits.CliError(exits.USAGE, f"--bundle {file} is there already: name a new file") from None
    except OSError as error:
        raise exits.CliError(exits.USAGE, f"--bundle {file} cannot be written: {error.strerror}") from None


def _secrets(access: Access) -> Iterator[str]:
    """Yields the secrets in the options and the environment of this command."""
    yield access.token or ""
    yield os.environ.get(names.TOKEN_ENV, "")
    if (named := os.environ.get(names.TOKEN_FILE_ENV)) and Path(named).is_file():
        yield Path(named).read_text(errors="replace")


def _machine() -> dict[str, Any]:
    return {
        "remotegpu": __version__,
        "wire": WIRE_VERSION,
        "python": sys.version,
        "platform": platform.platform(),
        "libc": platform.libc_ver(),
        "cpus": os.cpu_count(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        # The values of variables with a secret are removed.
        "environment": {
            name: _GONE if name in (names.TOKEN_ENV, names.SHARES_ENV) else value
            for name, value in sorted(os.environ.items())
            if name.startswith(("REMOTEGPU_", "CUDA_", "NVIDIA_", "LD_"))
        },
    }


def _appliance(text: str, access: Access) -> str:
    try:
        (found,) = inventories([text], access)
    except ApplianceError as error:
        return json.dumps({"error": str(error)})
    return json.dumps(describe(*found), indent=1)


def _cluster(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Yields files with our objects, and with the last lines of our pods' logs. Reads no Secret."""
    pods: list[Object] = []
    for kind, (path, selector) in _LISTS.items():
        try:
            found = cluster.list(path, selector)
        except RefusedError as error:
            yield f"{kind}.json", json.dumps({"error": str(error)})
            continue
        for each in found:
            each["metadata"].pop("managedFields", None)
        pods = found if kind == "pods" else pods
        yield f"{kind}.json", json.dumps(found, indent=1)
    for pod in pods:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        try:
            log = cluster.text(f"/api/v1/namespaces/{namespace}/pods/{name}/log", tailLines=str(_LOG_LINES))
        except RefusedError as error:
            log = str(error)
        yield f"logs/{namespace}.{name}.log", log
