"""Steps leave nothing behind at either end: no storages, templates, objects or threads, and no memory."""

import gc
import os
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
import torch
from offload_torch import to_remote

from remotegpu_offload.client.session import current
from remotegpu_offload.torch.device import Remote
from remotegpu_offload.torch.errors import checked

pytestmark = pytest.mark.frameworks

# What a cache or the allocator may add in the other steps.
TRACKED = 500
BLOCKS = 5_000
RESIDENT = 48 << 20


def resident() -> int:
    """Returns the memory of this process, in bytes."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def inventory(remote: Remote) -> tuple[dict[str, int], dict[str, int]]:
    """Counts everything that a step could leave, at both ends; also memory."""
    for _ in range(3):
        gc.collect()
    checked(remote.stream.ask("sync"))
    stats = current().stats()["acceptor"]
    objects = gc.get_objects()
    kinds = Counter(type(each) for each in objects if str(type(each).__module__).startswith("remotegpu."))
    found = {f"{kind.__module__}.{kind.__qualname__}": count for kind, count in kinds.items()}
    found |= {
        "storages": len(remote.storages),
        "storages there": int(checked(remote.stream.ask("stats")).header["storages"]),
        "entries": len(remote.stream.entries),
        "templates": sum(map(len, remote.engine._caches)),
        "misses": remote.engine.misses,
        "waiting": len(current().peer._waiting),
        "logical threads": len(current().peer.threads._logical),
        "objects there": int(stats["objects"]["held"]),
    }
    sizes = {
        "threads": threading.active_count(),
        "threads there": int(stats["threads"]),
        "tracked": len(objects),
        "allocated": sys.getallocatedblocks(),
        "resident": resident(),
        "resident there": int(stats["memory_bytes"]),
    }
    return found, sizes


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("steps", "early"), [(2_000, 200), (100_000, 10_000)])
def test_steps_leave_nothing_behind(remote: Remote, steps: int, early: int) -> None:
    """After `early` steps everything is as it stays."""
    weight = to_remote(torch.zeros(8))
    target = to_remote(torch.arange(8.0))
    here = torch.zeros(8)
    rate = 1 / 16

    def step(number: int) -> None:
        """A few operations: new storages, views, in place, a value for the device, and now and then an answer."""
        nonlocal here
        error = weight - target
        weight.sub_(error, alpha=rate)
        error[::2].mul_(2)
        here.sub_(here - torch.arange(8.0), alpha=rate)
        if number % 50 == 0:
            weight.add_(torch.full((8,), 0.5).to(weight.device))
            here.add_(0.5)
        if number % 100 == 0:
            assert weight.sum().item() == pytest.approx(here.sum().item())
        if number % 500 == 0:
            # A training step of its own, and an operation that fails.
            wanted = weight.detach().clone().requires_grad_()
            (wanted * target).sum().backward()
            assert torch.equal(wanted.grad.cpu(), torch.arange(8.0))
            with pytest.raises(RuntimeError):
                torch.linalg.cholesky(to_remote(-torch.eye(2)))[0].sum().item()

    for number in range(early):
        step(number)
    found_before, before = inventory(remote)
    for number in range(early, steps):
        step(number)
    # What is left behind stays; a command that asks this session something does not.
    for _ in range(5):
        found, sizes = inventory(remote)
        if found == found_before:
            break
    changed = {name for name in found | found_before if found.get(name) != found_before.get(name)}
    assert {name: (found_before.get(name), found.get(name)) for name in changed} == {}
    # Where a socket was full for the first time there is a thread that writes from then on.
    assert sizes["threads"] <= before["threads"] + 1
    assert sizes["threads there"] <= before["threads there"] + 1
    assert sizes["tracked"] - before["tracked"] < TRACKED
    assert sizes["allocated"] - before["allocated"] < BLOCKS
    assert sizes["resident"] - before["resident"] < RESIDENT
    assert sizes["resident there"] - before["resident there"] < RESIDENT
