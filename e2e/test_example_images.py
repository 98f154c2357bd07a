"""Images with another libcuda, or another C library: each runs on the client or is refused with a sentence."""

from __future__ import annotations

import re

import pytest
from support import hard_images
from support.checker import Checker
from support.manifests import pod
from support.namespace import Namespace
from support.system import MIB

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

CLIENT = "/usr/lib/remotegpu/libcuda.so.1"
SENTENCE = "remotegpu: this image uses musl (Alpine), and CUDA programs need glibc: use an image of Debian, Ubuntu"


def test_each_image_runs_on_the_client_or_is_refused(namespace: Namespace, checker: Checker) -> None:
    hard_images.load()
    quarters = {size // MIB // 4 for truth in checker.truths() for size in truth.shareable.values()}
    namespace("apply", "-f", str(hard_images.EXAMPLE / "pods.yaml"))
    for image in hard_images.GLIBC:
        namespace.wait_for_phase(image, "Succeeded")
        # Lines before it may tell that the appliance was not reached at once.
        seen = re.search(r"^.*, (\d+) MiB, through (\S+)\s*\Z", namespace.logs(image), re.MULTILINE)
        assert seen, f"{image}: {namespace.logs(image)}"
        assert any(abs(int(seen[1]) - quarter) <= 2 for quarter in quarters), seen[1]
        assert seen[2] == CLIENT, image
    namespace.wait_for_phase("musl", "Failed")
    assert SENTENCE in namespace.logs("musl")


def test_every_process_of_the_container_has_the_client_and_none_is_disturbed(namespace: Namespace) -> None:
    """Covers a shell, its children, and nvidia-smi; a complaint of the loader about preloading would be on stderr."""
    script = "nvidia-smi -L; for i in 1 2 3; do ls / >/dev/null; done; grep -o '/usr/lib/remotegpu/.*' /proc/self/maps"
    command = ["sh", "-c", f"({script} | sort -u; printenv NVIDIA_VISIBLE_DEVICES) 2>&1"]
    lines = namespace.run(pod("processes", command, fraction="0.25")).splitlines()
    # This cluster has software GPUs only, so frameworks are kept from making machine code.
    preloaded = {line.removeprefix("/usr/lib/remotegpu/") for line in lines if line.startswith("/")}
    stand_ins = {f"stand-ins/{name}.so.{version}" for name in ("libnvJitLink", "libnvrtc") for version in (12, 13)}
    assert preloaded == {"libcuda.so.1", "libremotegpu.so"} | stand_ins
    assert [line.partition(":")[0] for line in lines if not line.startswith("/")] == ["GPU 0", "void"]


def test_a_container_that_has_no_share_is_left_alone(namespace: Namespace) -> None:
    """The pod has two containers; the one without a limit is unchanged."""
    nothing = "test ! -e /etc/ld.so.preload && test ! -e /dev/nvidiactl && ! command -v nvidia-smi"
    made = pod("two", ["sh", "-c", f"{nothing} && echo untouched"])
    (alone,) = made["spec"]["containers"]
    shared = alone | {
        "name": "shared",
        "command": ["sh", "-c", "test -f /dev/nvidiactl && nvidia-smi -L"],
        "resources": {"limits": {"remotegpu/fraction": "0.25"}},
    }
    made["spec"]["containers"].append(shared)
    lines = namespace.run(made).splitlines()
    assert "untouched" in lines
    assert any(line.startswith("GPU 0: ") for line in lines)
