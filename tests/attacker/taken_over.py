"""Attacks by a worker that its tenant controls, on the sockets that it has from the appliance.

Workers are stand-ins, which say whatever a test wants. The GPU's time is divided. Alice and mallory have a quarter of
it each, and tokens of their own.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attacker.attack import Control, How, Outcome, launcher, put_undefended
from support.stand_in import Session, StandIn, Tenant, make_dist
from support.system import open_files, until

from remotegpu.api.quantities import Ask
from remotegpu.rpc.client import Access, ApplianceClient, parse_endpoint

MIB = 1 << 20
SHARE = 256 * MIB
TOKENS = "[admin]\nroot:token-of-root\n[user]\nalice:token-of-alice\nmallory:token-of-mallory\n"
#: Longer than a turn that does not end: 10 ms until it is asked to, and 10 more.
SECONDS = 3


@dataclass
class World:
    appliance: StandIn

    @contextlib.contextmanager
    def lease(self, name: str) -> Iterator[Tenant]:
        client = ApplianceClient(parse_endpoint(self.appliance.endpoint), Access(f"token-of-{name}"), call_seconds=20)
        with contextlib.closing(client), client.open_lease(Ask(memory_bytes=SHARE), name, wait=False) as events:
            granted = next(event.granted for event in events if event.HasField("granted"))
        tenant = Tenant(self.appliance, granted, hold=True)
        try:
            yield tenant
        finally:
            tenant.close()

    @contextlib.contextmanager
    def both(self) -> Iterator[tuple[Session, Session]]:
        """A session of alice's, and one of mallory's."""
        with self.lease("alice") as alice, self.lease("mallory") as mallory:
            yield alice.session(), mallory.session()

    def used(self, name: str) -> int:
        """Returns the GPU time that a client's leases have used, in nanoseconds."""
        (lease,) = [each for each in self.appliance.client.inventory().leases if each.client == name]
        return sum(place.gpu_nanoseconds for place in lease.places)

    def open_files(self, name: str) -> int:
        """How many files of this name the appliance has open."""
        return list(open_files(self.appliance.process.pid).values()).count(name)


@contextlib.contextmanager
def world(control: Control | None) -> Iterator[World]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tokens").write_text(TOKENS)
        dist = make_dist(folder / "dist")
        if control is not None and control.how is How.BUILD:
            put_undefended(dist, control.name, "remotegpu-gateway")
        options = ("--tokens", str(folder / "tokens"), "--compute-mode", "turns", "--suspend-memory", "1GiB")
        with StandIn(dist, *options, access=Access("token-of-root"), prefix=launcher(control)) as it:
            yield World(it)


# ---- the control socket


def descriptors_without_end(world: World) -> Outcome:
    """Folders, which are no regular files: the appliance has 1,024 descriptors, and opens no session without one."""
    before = world.open_files("/")
    with world.both() as (alice, mallory):
        mallory.ask("folders 300")
        code = "closed"
        # The appliance does not answer a worker whose channel is closed.
        with contextlib.suppress(ValueError, OSError):
            mallory.grant(MIB)
            code = "goes on"
        assert alice.grant(MIB) == MIB
        return Outcome(world.open_files("/") >= before + 300, code)


def usage_of_another(world: World) -> Outcome:
    """A worker sends an event that only the gateway may send: alice would pay for it."""
    with world.lease("alice") as alice, world.lease("mallory") as mallory:
        lie = {"op": "used", "times": [{"lease": alice.granted.lease_id, "gpu": 0, "nanoseconds": 10**15}]}
        session = mallory.session()
        session.ask(f"raw {json.dumps(lie)}")
        # The answer shows that the event before has been handled.
        session.grant(MIB)
        used = world.used("alice")
        return Outcome(used >= 10**15, f"{used} ns")


def memory_that_another_leaves(world: World) -> Outcome:
    """Alice returns memory and offers it to her lease. So does mallory, who waits for it: whose worker hands it on?"""
    offer = json.dumps({"op": "leaving", "device": 0, "size": SHARE, "offers": True})
    want = json.dumps({"op": "grant", "id": 99, "device": 0, "least": SHARE, "want": SHARE, "maps": True})
    with world.lease("alice") as first, world.lease("mallory") as second:
        alice, own, mallory = first.session(), second.session(1), second.session(2)
        for session in (alice, own):
            session.grant(SHARE)
            session.ask(f"raw {offer}")
        mallory.ask(f"raw {want}")
        until(lambda: "handon" in alice.ask("told") + own.ask("told"), 20, "a worker is to hand it on")
        return Outcome("handon" in alice.ask("told"), "its own" if own.ask("told") else "alice's")


def image_that_grows(world: World) -> Outcome:
    """The file for mallory's suspended session grows: host memory that is not counted."""
    with world.lease("mallory") as mallory:
        session = mallory.session()
        session.grant(MIB)
        session.ask(f"overfill {64 * MIB}")
        client = world.appliance.client
        with client.suspend_lease(mallory.granted.lease_id) as progress:
            list(progress)
        files = open_files(world.appliance.process.pid)
        sizes = [link.stat().st_size for link, name in files.items() if "remotegpu-image" in name]
        return Outcome(any(size > 64 * MIB for size in sizes), "kept" if sizes else "ended")


# ---- turns at the GPU


def _heard(session: Session, word: str, seconds: float = SECONDS) -> list[dict[str, Any]]:
    """Returns the session's messages about turns, once this word is among them or none came for so many seconds."""
    heard: list[dict[str, Any]] = session.ask(f"hear {word} {seconds}")
    return heard


def _words(session: Session, word: str, seconds: float = SECONDS) -> list[str]:
    return [each["op"] for each in _heard(session, word, seconds)]


def _want(session: Session) -> None:
    session.ask('say {"op": "want", "device": 0}')


def turn_without_end(world: World) -> Outcome:
    """Mallory has a turn and stays silent. Does alice get one?"""
    with world.both() as (alice, mallory):
        _want(mallory)
        assert "turn" in _words(mallory, "turn")
        _want(alice)
        has_one = "turn" in _words(alice, "turn")
        return Outcome(not has_one, "over" if "over" in _words(mallory, "over", 0) else "goes on")


def turn_of_another(world: World) -> Outcome:
    """Mallory ends alice's turn, whose number follows that of its own. Alice would not even be asked to end it."""
    with world.both() as (alice, mallory):
        _want(mallory)
        own = _heard(mallory, "turn")[-1]["turn"]
        mallory.ask(f'say {{"op": "done", "device": 0, "turn": {own}, "more": false}}')
        _want(alice)
        hers = _heard(alice, "turn")[-1]["turn"]
        mallory.ask(f'say {{"op": "done", "device": 0, "turn": {hers}, "more": true}}')
        mallory.ask("forget")
        assert "turn" in _words(mallory, "turn")
        was_asked = "yield" in _words(alice, "yield", 0)
        return Outcome(not was_asked, "asked" if was_asked else "not asked")
