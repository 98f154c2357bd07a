"""Attacks on what an appliance keeps for sessions besides their memory: device code, and images of suspended ones.

Alice and mallory have tokens of their own: they are two tenants. The world is that of `sessions.py`.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import struct
from collections.abc import Iterator

from attacker import sessions
from attacker.attack import Outcome
from attacker.raw import CONTEXT, MIB, NEED_IMAGE, Raw, Reply
from attacker.sessions import MALLORYS, SHARE, Sessions
from support.stand_in import Tenant
from support.system import open_files, until

from remotegpu.api.quantities import Ask
from remotegpu.rpc.client import Access, ApplianceClient, parse_endpoint

world = sessions.world


@contextlib.contextmanager
def _of_mallory(world: Sessions) -> Iterator[Raw]:
    client = ApplianceClient(parse_endpoint(world.appliance.endpoint), Access(MALLORYS), call_seconds=20)
    with contextlib.closing(client), client.open_lease(Ask(memory_bytes=SHARE), "m", wait=False) as events:
        granted = next(event.granted for event in events if event.HasField("granted"))
    tenant = Tenant(world.appliance, granted, hold=True)
    with contextlib.closing(tenant), Raw(tenant) as session:
        yield session


def _load_by_name(session: Raw, image: bytes, module: int) -> Reply:
    """Loads a module by the hash of its image alone, as a client that expects the image in the cache."""
    name = hashlib.sha256(image).digest()
    return session.ask("ModuleLoad", struct.pack("<QQ", module, CONTEXT) + name + struct.pack("<I?Q", 0, False, MIB))


def code_of_another_tenant(world: Sessions) -> Outcome:
    """Mallory knows the hash of a program, and tries to learn whether alice has loaded it."""
    secret = f"// {secrets.token_hex(32 << 10)}\n"
    image = f"{secret}.version 8.0\n.target sm_80\n.address_size 64\n.visible .global .align 4 .b8 big[4];\n".encode()
    with world.session() as alice, world.session() as hers, _of_mallory(world) as mallory:
        for session in (alice, hers, mallory):
            assert session.grant(4 * MIB).code == 0
        assert alice.load(image, MIB).code == 0
        modules = iter(range(2, 1000))
        until(lambda: _load_by_name(hers, image, next(modules)).code == 0, 20, "it is kept for alice")
        code = _load_by_name(mallory, image, 1).code
        return Outcome(code == 0, "NEED_IMAGE" if code == NEED_IMAGE else f"CUDA error {code}")


def image_of_a_suspended_session(world: Sessions) -> Outcome:
    """Reads the image's file, as an attacker can who reads the appliance's memory or its disk."""
    canary = secrets.token_bytes(32)
    with world.lease() as tenant, Raw(tenant) as alice:
        alice.allocate(2 * MIB)
        assert alice.write(alice.arena, canary * 1024) == 0
        client, name = world.appliance.client, tenant.granted.lease_id
        with client.suspend_lease(name) as progress:
            list(progress)
        files = open_files(world.appliance.process.pid)
        found = [link.read_bytes() for link, name in files.items() if "remotegpu-image" in name]
        assert found, "there is an image"
        won = any(canary in image for image in found)
        if not won:
            with client.resume_lease(name) as progress:
                list(progress)
            assert alice.read(alice.arena, 32).data == canary
        return Outcome(won, "open" if won else "sealed")
