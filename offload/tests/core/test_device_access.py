"""Which environments open devices themselves, whom they serve then, and which nodes their sandbox admits."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from offload_appliance import lease, open_session, session
from offload_cuda import cuda_appliance
from offload_hostile import run

from remotegpu.api.quantities import Ask
from remotegpu.appliance.shares.allocation import LeasedGpus
from remotegpu_offload.appliance.devices import Access, access_of, nodes_of, refusal_of, refusal_of_lease, state_of
from remotegpu_offload.appliance.option import parse

# As much of torch's build for ROCm as an environment's self-test and a session look at.
ROCM = """
import types
import numpy
version = types.SimpleNamespace(hip="6.4", cuda=None)
cuda = types.SimpleNamespace(
    is_available=lambda: True, device_count=lambda: 2, get_device_name=lambda device: f"accelerator {device}")
def arange(count, device=None):
    return numpy.arange(count)
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[dict[str, Path]]:
    """Files whose names are like those of device nodes."""
    named = {kind: Path(f"/dev/{kind}-remotegpu-test-{os.getpid()}-access") for kind in ("nvidia", "kfd", "accel")}
    try:
        for path in named.values():
            path.touch()
            path.chmod(0o666)
    except OSError:
        pytest.skip("no file can be made in /dev: this needs root")
    yield named
    for path in named.values():
        path.unlink()


def access(words: str, *, real: bool) -> Access:
    return access_of(parse(f"x={sys.executable}{words}"), real=real)


def test_only_what_is_told_to_opens_devices() -> None:
    for words in ("", ":cuda"):
        assert access(words, real=True) is Access.SHARE
    assert access(":cuda,direct", real=True) is Access.OPEN
    assert access(":cpu", real=True) is Access.NONE
    assert access("", real=False) is Access.NONE
    assert access(":cuda", real=False) is Access.SHARE
    for backend in ("rocm", "xpu"):
        assert access(f":{backend},exclusive", real=False) is Access.OPEN


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        ("", ()),
        (":cpu", ()),
        (":cuda", ()),
        (":cuda,direct", ("nvidia",)),
        (":rocm,exclusive", ("kfd", "dri")),
        (":xpu,exclusive", ("dri", "accel")),
    ],
)
def test_a_sandbox_admits_nodes_of_its_own_back_end(words: str, begins: tuple[str, ...]) -> None:
    option = parse(f"x={sys.executable}{words}")
    assert nodes_of(option, access_of(option, real=True)) == begins
    assert state_of(option, access_of(option, real=True))[1] is ("direct" in words)


@pytest.mark.parametrize("words", [":cpu,direct", ":rocm,direct", ":cuda,exclusive", ":cuda,", ",direct", ":rocm,x"])
def test_words_go_with_their_back_ends(words: str) -> None:
    text = f"x={sys.executable}{words}"
    with pytest.raises(ValueError, match=rf"^{re.escape(repr(text))}: "):
        parse(text)


def test_an_exclusive_environment_serves_leases_of_everything() -> None:
    option, sizes = parse(f"x={sys.executable}:rocm,exclusive"), (100, 200)
    for whole in (LeasedGpus((0, 1), (100, 200)), LeasedGpus((1, 0), (200, 100))):
        assert refusal_of_lease(option, whole, sizes) == ""
    for part in (LeasedGpus((0,), (100,)), LeasedGpus((0, 1), (100, 199)), LeasedGpus((), ())):
        assert "2 GPUs" in refusal_of_lease(option, part, sizes)
    shared = parse(f"x={sys.executable}:cuda")
    assert refusal_of_lease(shared, LeasedGpus((0,), (1,)), sizes) == ""


@pytest.mark.parametrize("backend", ["rocm", "xpu"])
def test_without_exclusive_it_is_refused(backend: str) -> None:
    assert "exclusive" in refusal_of(parse(f"x={sys.executable}:{backend}"))
    other = f"other={sys.executable}:cpu"
    with cuda_appliance("--offload", other, backend=backend, torch=ROCM) as it:
        checks = {check.name: check for check in it.client.health().checks}
        assert checks["environment hostile"].status == "warn"
        assert f":{backend},exclusive" in checks["environment hostile"].message
        with lease(it) as tenant:
            refusal = open_session(tenant, environment="hostile").refusal
            assert f":{backend},exclusive" in refusal
            # The others are served.
            assert open_session(tenant).environment.name == "other"


def test_an_exclusive_session_has_all_devices_and_a_part_has_none(nodes: dict[str, Path]) -> None:
    with cuda_appliance(backend="rocm,exclusive", torch=ROCM) as it:
        checks = {check.name: check.status for check in it.client.health().checks}
        assert checks["environment hostile"] == checks["environment hostile: devices"] == "ok"
        for ask in (Ask(1, 250), Ask(1, 1000), Ask(2, 500)):
            with lease(it, ask) as tenant:
                assert "2 GPUs" in open_session(tenant).refusal
        with lease(it, Ask(2, 1000)) as tenant, session(tenant) as peer:
            assert run(peer, "import os; value = os.environ['HIP_VISIBLE_DEVICES']") == "0,1"
            seen = f"import os; value = [os.path.exists(path) for path in {list(map(str, nodes.values()))!r}]"
            assert run(peer, seen) == [kind == "kfd" for kind in nodes]
