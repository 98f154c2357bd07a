"""Tests of certificates and their rotation, with a clock that the tests set."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field

import pytest
from cryptography import x509
from cryptography.x509 import verification

from remotegpu_operator.appliances.certificates import (
    AUTHORITY_LIFETIME,
    LEAF_LIFETIME,
    OVERLAP,
    Authority,
    Pair,
    advance,
    leaf_is_good,
    new_authority,
    new_leaf,
)

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
NAME = "a.appliance.remotegpu.io"


def accepted(leaf: str, bundle: str, name: str, now: datetime.datetime) -> bool:
    """Whether a TLS client that trusts only `bundle` accepts the certificate `leaf`."""
    store = verification.Store(x509.load_pem_x509_certificates(bundle.encode()))
    verifier = verification.PolicyBuilder().store(store).time(now).build_server_verifier(x509.DNSName(name))
    try:
        verifier.verify(x509.load_pem_x509_certificate(leaf.encode()), [])
    except verification.VerificationError:
        return False
    return True


@dataclass
class World:
    """A simulated cluster in which new leaves and bundles arrive with a delay of up to `late`."""

    late: datetime.timedelta
    now: datetime.datetime = START
    generation: str = "1"
    given: Pair | None = None
    leaf: Pair = field(init=False)
    authority: Authority = field(init=False)
    bundles: list[tuple[datetime.datetime, str]] = field(default_factory=list)
    leaves: list[tuple[datetime.datetime, str]] = field(default_factory=list)
    steps: int = 0

    def __post_init__(self) -> None:
        self.authority = Authority(self.given or new_authority(self.now), self.generation, self.now)
        self.leaf = new_leaf(self.authority.signer, (NAME,), self.now)
        self._remember()

    def pass_time(self, by: datetime.timedelta) -> None:
        self.now += by
        new = advance(
            self.authority, self.now, generation=self.generation, leaves=[self.leaf.certificate], given=self.given
        )
        self.steps += new != self.authority
        self.authority = new
        if not leaf_is_good(self.leaf.certificate, new.signer, (NAME,), self.now):
            self.leaf = new_leaf(new.signer, (NAME,), self.now)
        self._remember()

    def _remember(self) -> None:
        self.bundles.append((self.now, self.authority.bundle))
        self.leaves.append((self.now, self.leaf.certificate))

    def _seen(self, history: list[tuple[datetime.datetime, str]]) -> list[str]:
        """Returns the texts that may be in use now: those that were current at some time in the last `late`."""
        since = self.now - self.late
        before = [text for time, text in history if time <= since][-1:]
        return list(dict.fromkeys(before + [text for time, text in history if time > since]))

    def check(self) -> None:
        for bundle in self._seen(self.bundles):
            for leaf in self._seen(self.leaves):
                assert accepted(leaf, bundle, NAME, self.now), f"after {self.now - START}"


def test_a_leaf_is_accepted_for_its_names_and_by_its_authority_alone() -> None:
    authority, other = new_authority(START), new_authority(START + datetime.timedelta(seconds=1))
    leaf = new_leaf(authority, (NAME, "b.example"), START)
    assert accepted(leaf.certificate, authority.certificate, NAME, START)
    assert accepted(leaf.certificate, authority.certificate, "b.example", START)
    assert not accepted(leaf.certificate, authority.certificate, "c.example", START)
    assert not accepted(leaf.certificate, other.certificate, NAME, START)
    assert not accepted(leaf.certificate, authority.certificate, NAME, START + LEAF_LIFETIME + OVERLAP)


def test_a_leaf_is_renewed_in_the_last_third_of_its_life_and_for_other_names() -> None:
    authority = new_authority(START)
    leaf = new_leaf(authority, (NAME,), START).certificate
    assert leaf_is_good(leaf, authority, (NAME,), START + LEAF_LIFETIME * 0.6)
    assert not leaf_is_good(leaf, authority, (NAME,), START + LEAF_LIFETIME * 0.7)
    assert not leaf_is_good(leaf, authority, ("b.example",), START)
    assert not leaf_is_good("no certificate", authority, (NAME,), START)


def test_a_leaf_does_not_outlive_its_authority() -> None:
    authority = new_authority(START)
    leaf = new_leaf(authority, (NAME,), START + AUTHORITY_LIFETIME - datetime.timedelta(days=1)).parsed()
    assert leaf.not_valid_after_utc <= authority.parsed().not_valid_after_utc


@pytest.mark.parametrize("late_minutes", [0, 3, 9])
def test_through_two_years_every_bundle_in_use_accepts_every_leaf_in_use(late_minutes: int) -> None:
    world = World(datetime.timedelta(minutes=late_minutes))
    signers = {world.authority.signer.certificate}
    while world.now < START + 2 * AUTHORITY_LIFETIME:
        # Steps of a day, and of two minutes during a rotation.
        changing = world.authority.next is not None or world.authority.previous
        world.pass_time(datetime.timedelta(minutes=2) if changing else datetime.timedelta(days=1))
        world.check()
        signers.add(world.authority.signer.certificate)
    assert len(signers) >= 3, "the authority has been changed at two thirds of its life, each time"


def test_another_generation_changes_the_authority_once() -> None:
    world = World(datetime.timedelta(minutes=5))
    old = world.authority.signer.certificate
    world.generation = "2"
    for _ in range(60):
        world.pass_time(datetime.timedelta(minutes=1))
        world.check()
    assert world.authority.signer.certificate != old
    assert old.strip() not in world.authority.bundle
    assert world.steps == 3, "known, signing, and the old one forgotten"


def test_an_authority_of_somebody_else_is_taken_over_with_the_same_overlap() -> None:
    world = World(datetime.timedelta(minutes=5), given=new_authority(START))
    for _ in range(5):
        world.pass_time(datetime.timedelta(minutes=1))
    assert world.steps == 0
    world.given = new_authority(START + datetime.timedelta(minutes=5))
    for _ in range(40):
        world.pass_time(datetime.timedelta(minutes=1))
        world.check()
    assert world.authority.signer == world.given


def test_the_old_authority_is_believed_as_long_as_anything_it_signed_is_in_use() -> None:
    world = World(datetime.timedelta(0))
    stuck = world.leaf.certificate
    world.generation = "2"
    for _ in range(100):
        world.now += datetime.timedelta(minutes=1)
        world.authority = advance(world.authority, world.now, generation="2", leaves=[stuck], given=None)
        assert accepted(stuck, world.authority.bundle, NAME, world.now)
