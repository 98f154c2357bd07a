"""The grants of a lease's sessions never exceed the share, and nearly all of it can be used."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from remotegpu.appliance.shares.grants import Quota

SLAB = 2 << 20
LIMIT = 256 * SLAB
SESSIONS = st.sampled_from(["a", "b", "c"])


class QuotaMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.quota = Quota(LIMIT)
        self.held = {"a": 0, "b": 0, "c": 0}

    @rule(session=SESSIONS, least=st.integers(-SLAB, 2 * LIMIT), more=st.integers(-SLAB, LIMIT))
    def grant(self, session: str, least: int, more: int) -> None:
        size = self.quota.grant(session, least, least + more)
        assert size == 0 or least <= size <= max(least, least + more)
        assert size > 0 or not 0 < least <= LIMIT - sum(self.held.values())
        self.held[session] += size

    @rule(session=SESSIONS, size=st.integers(-LIMIT, 2 * LIMIT))
    def leave(self, session: str, size: int) -> None:
        """Memory on its way back is still granted, and a session cannot announce more than it holds."""
        self.quota.leave(session, size)
        assert 0 <= self.quota.leaving[session] <= self.held[session]

    @rule(session=SESSIONS, size=st.integers(-LIMIT, 2 * LIMIT))
    def give_back(self, session: str, size: int) -> None:
        """The size may be larger than the session's grant, or negative: a worker may lie."""
        self.quota.give_back(session, size)
        self.held[session] -= max(0, min(size, self.held[session]))

    @rule(session=SESSIONS)
    def end(self, session: str) -> None:
        self.quota.forget(session)
        self.held[session] = 0

    @invariant()
    def the_sum_is_right_and_fits(self) -> None:
        assert self.quota.used == sum(self.held.values()) <= LIMIT
        assert self.quota.free == LIMIT - self.quota.used
        assert all(self.quota.leaving.get(name, 0) <= held for name, held in self.held.items())


TestQuota = QuotaMachine.TestCase


@given(turns=st.lists(st.integers(0, 3), min_size=400, max_size=800), want=st.integers(1, 32))
def test_four_processes_that_allocate_until_oom_get_the_share(turns: list[int], want: int) -> None:
    """Each uses up what it was granted before it asks again, in any order, and stops at the first refusal."""
    quota = Quota(LIMIT)
    spare, used, alive = [0] * 4, [0] * 4, {0, 1, 2, 3}
    for who in [*turns, *(i % 4 for i in range(4 * LIMIT // SLAB))]:
        if who not in alive:
            continue
        if spare[who] == 0:
            spare[who] = quota.grant(str(who), SLAB, want * SLAB)
        if spare[who] == 0:
            alive.remove(who)
        else:
            spare[who] -= SLAB
            used[who] += SLAB
    assert not alive
    assert sum(used) == LIMIT
