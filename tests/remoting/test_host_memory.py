"""All host memory that workers hold for their tenants counts (`--host-memory-per-lease`, `-tenant`)."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Iterator

import pytest
from attacker.raw import CONTEXT, LEGACY, MIB, EndedError, Raw, extent
from support.stand_in import StandIn
from support.system import DIST, until

from remotegpu.api.quantities import Ask

BUDGET = 100 * MIB
SHARE = Ask(memory_bytes=20 * MIB)
PIECE = MIB // 2
# The number of commands that open a session.
OPENED = 3


@pytest.fixture
def appliance() -> Iterator[StandIn]:
    with StandIn(DIST, "--host-memory-per-lease", str(BUDGET)) as it:
        yield it


def images(session: Raw) -> None:
    """Sends device code that no module is made of."""
    image = os.urandom(PIECE)
    session.send("ImageChunk", hashlib.sha256(image).digest() + struct.pack("<QQ", 0, PIECE) + image)


def commands_that_wait(session: Raw) -> None:
    """Sends copies behind a gate that is never opened."""
    if session.seq == OPENED:
        session.send("Gate", struct.pack("<Q", 1), LEGACY)
    payload = struct.pack("<QQ", CONTEXT, session.arena) + extent(PIECE) + struct.pack("<Q", 0) + bytes(PIECE)
    session.send("CopyToDevice", payload, LEGACY)


def why_one_ended(sessions: list[Raw]) -> str:
    """Returns the reason why one ended; empty while all live."""
    for session in sessions:
        try:
            session.ask("MemoryQuery", struct.pack("<I", 0))
        except EndedError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("hoard", [images, commands_that_wait])
def test_images_and_commands_that_wait_count_in_the_budget(appliance: StandIn, hoard: Callable[[Raw], None]) -> None:
    """Each process is within the lease's budget, and both together are past it, but below the kernel's limit."""
    lease, other = appliance.lease(SHARE), appliance.lease(SHARE)
    beside, sessions = Raw(other), [Raw(lease), Raw(lease)]
    for session in sessions:
        for _ in range(BUDGET * 5 // 8 // PIECE):
            hoard(session)
    assert "--host-memory-per-lease" in until(lambda: why_one_ended(sessions), 20, "a session ends")
    assert beside.synchronize() == 0
