"""Images with another libcuda, or another C library: each runs on the client or is refused with a sentence."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import yaml
from support import hard_images
from support.checker import Checker
from support.kubectl import Object
from support.manifests import pod
from support.namespace import Namespace
from support.system import MIB

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

CLIENT = "/usr/lib/remotegpu/libcuda.so.1"
SENTENCE = "remotegpu: this image uses musl (Alpine), and CUDA programs need glibc: use an image of Debian, Ubuntu"


@pytest.fixture(scope="module")
def pods() -> Mapping[str, Object]:
    """The example's pods; their images are in the nodes."""
    hard_images.load()
    objects = yaml.safe_load_all((hard_images.EXAMPLE / "pods.yaml").read_text())
    return {found["metadata"]["name"]: found for found in objects}


@pytest.mark.parametrize("image", hard_images.GLIBC)
def test_the_client_is_found_before_any_other(
    pods: Mapping[str, Object], namespace: Namespace, checker: Checker, image: str
) -> None:
    quarter = {size // MIB // 4 for truth in checker.truths() for size in truth.shareable.values()}
    line = namespace.run(pods[image]).splitlines()[-1]
    memory, loaded = line.split(", ", 1)[1].split(" MiB, through ")
    assert loaded == CLIENT
    assert any(abs(int(memory) - expected) <= 2 for expected in quarter), line


def test_musl_is_refused_with_a_sentence(pods: Mapping[str, Object], namespace: Namespace) -> None:
    namespace.create(pods["musl"])
    namespace.wait_for_phase("musl", "Failed")
    assert SENTENCE in namespace.logs("musl")


def test_every_process_of_the_container_has_the_client_and_none_is_disturbed(namespace: Namespace) -> None:
    """A shell, its children, and nvidia-smi; what the loader has to say about preloading would be on stderr."""
    script = "set -e; nvidia-smi -L; for i in 1 2 3; do ls / >/dev/null; done; grep -c remotegpu/ /proc/self/maps"
    command = ["sh", "-c", f"({script}) 2>&1"]
    listed, mapped = namespace.run(pod("processes", command, fraction="0.25")).splitlines()
    assert listed.startswith("GPU 0: ")
    assert int(mapped) > 0


def test_a_container_that_has_no_share_is_left_alone(namespace: Namespace) -> None:
    """Of two containers of a pod, the one without a limit."""
    made = pod("two", ["sh", "-c", "test ! -e /etc/ld.so.preload && ! command -v nvidia-smi && echo untouched"])
    (alone,) = made["spec"]["containers"]
    shared = alone | {
        "name": "shared", "command": ["nvidia-smi", "-L"], "resources": {"limits": {"remotegpu/fraction": "0.25"}},
    }  # fmt: skip
    made["spec"]["containers"].append(shared)
    lines = namespace.run(made).splitlines()
    assert "untouched" in lines
    assert any(line.startswith("GPU 0: ") for line in lines)
