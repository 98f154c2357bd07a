"""llama-server on the cluster: two replicas on one GPU, a model on a volume, drained when a pod is deleted.

It needs llama.cpp as `make llama-cpp` builds it (CI: shard serving-values). The GPU is one that software makes, and the
image is the test's own. vLLM has no such test.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from llama_cpp.random_model import write
from llama_cpp.serving import PROMPTS, asking, server
from support import llama_image
from support.kubectl import ROOT, Kubectl, Object
from support.manifests import software_pool
from support.namespace import Namespace
from support.system import until

from remotegpu.api.kubernetes import POOLS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

EXAMPLE: Final = ROOT / "examples" / "16-language-models" / "llama-server.yaml"
NAME: Final = "llama-server"
SECONDS: Final = 300


@pytest.fixture
def one_gpu(kubectl: Kubectl, nodes: list[str], namespace: Namespace) -> Iterator[str]:
    """A pool of one GPU, so that both replicas share it."""
    name = "language-models"
    kubectl.apply(software_pool(name, node=nodes[0], memory="2Gi"))
    until(lambda: ((kubectl.get(POOLS, name) or {}).get("status") or {}).get("phase") == "Ready", 90, "it is ready")
    yield name
    namespace("delete", "deployment", "--all", seconds=120)
    until(lambda: not namespace.pods(), 120, "the pods have ended")
    kubectl("delete", POOLS, name, seconds=120)


@pytest.fixture
def model(kubectl: Kubectl, namespace: Namespace) -> Iterator[Path]:
    """A file on a volume of the nodes' machine, which the namespace claims as the example wants it."""
    folder = ROOT / "target" / "e2e" / "models"
    folder.mkdir(parents=True, exist_ok=True)
    volume: dict[str, Any] = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    name = f"{namespace.name}-models"
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": volume | {"capacity": {"storage": "1Gi"}, "hostPath": {"path": str(folder)}},
        }
    )
    namespace.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "models"},
            "spec": volume | {"resources": {"requests": {"storage": "1Gi"}}, "volumeName": name},
        }
    )
    yield write(folder / "model.gguf")
    kubectl("delete", "persistentvolume", name, "--wait=false")


def deploy(namespace: Namespace, pool: str) -> None:
    """Deploys the example with the test's image and pool."""
    deployment, service = yaml.safe_load_all(EXAMPLE.read_text())
    template = deployment["spec"]["template"]
    template["metadata"]["annotations"] = {"remotegpu.io/pool": pool}
    (container,) = template["spec"]["containers"]
    container |= {"image": llama_image.TAG, "imagePullPolicy": "Never"}
    namespace.apply(deployment, service)


def pods(namespace: Namespace) -> list[Object]:
    """Returns the pods that are not being deleted."""
    return [pod for pod in namespace.pods(app=NAME) if "deletionTimestamp" not in pod["metadata"]]


class Asked:
    """A client of one pod, or of all of them by the Service, through the API server."""

    def __init__(self, namespace: Namespace, path: str) -> None:
        self._namespace = namespace
        self._address = f"/api/v1/namespaces/{namespace.name}/{path}/proxy"

    def complete(self, prompt: list[int], tokens: int) -> list[int]:
        address, body = f"--raw={self._address}/completion", json.dumps(asking(prompt, tokens))
        found: list[int] = json.loads(self._namespace("create", address, "-f", "-", stdin=body, seconds=SECONDS))[
            "tokens"
        ]
        return found

    def is_processing(self) -> bool:
        return any(slot["is_processing"] for slot in json.loads(self._namespace("get", f"--raw={self._address}/slots")))


def test_two_replicas_answer_as_natively_and_drain(namespace: Namespace, one_gpu: str, model: Path) -> None:
    few, many = 8, 60
    with server(model, None) as native:
        right = [native.complete(prompt, few) for prompt in PROMPTS]
        longer = native.complete(PROMPTS[0], many)
    llama_image.load()
    deploy(namespace, one_gpu)
    namespace("rollout", "status", f"deployment/{NAME}", f"--timeout={SECONDS}s", seconds=SECONDS + 10)
    replicas = pods(namespace)
    assert len(replicas) == 2
    for path in ("services/llama-server:http", *(f"pods/{pod['metadata']['name']}:8080" for pod in replicas)):
        asked = Asked(namespace, path)
        assert [asked.complete(prompt, few) for prompt in PROMPTS] == right, path
    first = replicas[0]["metadata"]["name"]
    asked = Asked(namespace, f"pods/{first}:8080")
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(asked.complete, PROMPTS[0], many)
        until(asked.is_processing, 60, "the request has begun")
        namespace("delete", "pod", first, "--wait=false")
        assert answer.result(SECONDS) == longer
    # Another pod takes its place, and its share.
    until(lambda: namespace.phase(first) == "Gone", 90, "the pod has ended")
    namespace("rollout", "status", f"deployment/{NAME}", f"--timeout={SECONDS}s", seconds=SECONDS + 10)
    assert first not in {pod["metadata"]["name"] for pod in pods(namespace)}
    assert Asked(namespace, "services/llama-server:http").complete(PROMPTS[1], few) == right[1]
