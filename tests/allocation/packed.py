"""The rules of packing in their simplest form: what holds after each move of a random pool, and what is possible."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from remotegpu_operator.allocation.packing import Gpu, Place, Plan, Step, Tenant, plan

NOW, QUIET = 10_000.0, 600.0
KINDS = (("A100", 13000), ("A100", 13010), ("T4", 13000))


@dataclass(frozen=True)
class Pool:
    gpus: tuple[Gpu, ...]
    tenants: tuple[Tenant, ...]

    def tenant(self, uid: str) -> Tenant:
        return next(each for each in self.tenants if each.uid == uid)

    def with_tenant(self, tenant: Tenant) -> Pool:
        return replace(self, tenants=tuple(tenant if each.uid == tenant.uid else each for each in self.tenants))

    def on(self, gpu: int) -> list[tuple[Tenant, Place]]:
        return [(each, place) for each in self.tenants for place in each.places if place.gpu == gpu]

    def in_use(self) -> set[int]:
        return {place.gpu for each in self.tenants for place in each.places}

    def busy(self) -> set[str]:
        return {self.gpus[gpu].appliance for gpu in self.in_use()}

    def score(self) -> tuple[int, int]:
        return len(self.busy()), len(self.in_use())

    def fits(self) -> bool:
        """Whether no GPU is over its memory, its time or its sessions."""
        return all(
            sum(place.memory for _, place in self.on(index)) <= gpu.size
            and sum(place.time for _, place in self.on(index)) <= gpu.time
            and sum(tenant.sessions for tenant, _ in self.on(index)) <= gpu.sessions
            for index, gpu in enumerate(self.gpus)
        )

    def here(self, uid: str, appliance: str) -> list[Place]:
        return [each for each in self.tenant(uid).places if self.gpus[each.gpu].appliance == appliance]

    def during(self, step: Step) -> Pool:
        """The pool while a move lasts: the claim has both."""
        tenant = self.tenant(step.uid)
        new = [replace(old, gpu=gpu) for old, gpu in zip(self.here(step.uid, step.source), step.to, strict=True)]
        return self.with_tenant(replace(tenant, places=(*tenant.places, *new)))

    def after(self, step: Step) -> Pool:
        tenant = self.during(step).tenant(step.uid)
        left = tuple(each for each in tenant.places if self.gpus[each.gpu].appliance != step.source)
        return self.with_tenant(replace(tenant, places=left, since=NOW))

    def planned(self, most: int) -> Plan:
        return plan(self.gpus, self.tenants, most=most, now=NOW, quiet=QUIET)


def pool(seed: int, *, appliances: int, gpus: int, claims: int, special: float) -> Pool:
    """A random pool within its limits. `special` is how often a claim or a GPU has a property that forbids a move."""
    dice = random.Random(seed)
    kinds = KINDS if special else KINDS[:1]
    cards: list[Gpu] = []
    for number in range(appliances):
        kind = dice.choice(kinds)
        for _ in range(dice.randint(1, gpus)):
            # An appliance of two models is rare, but there are some.
            mine = dice.choice(kinds) if dice.random() < special / 4 else kind
            size, sessions = dice.choice([100, 100, 97]), dice.choice([4, 8, 100])
            closed = "it drains" if dice.random() < special / 4 else ""
            cards.append(Gpu(f"appliance-{number}", mine, size, sessions, closed=closed))
    made = Pool(tuple(cards), ())
    for number in range(claims):
        count = dice.choice([1, 1, 1, 1, 2, 3])
        where = dice.sample(range(len(cards)), min(count, len(cards)))
        memory, time = dice.choice([5, 10, 20, 25, 33, 50, 75, 100]), dice.choice([0, 0, 100, 300])
        tenant = Tenant(
            f"uid-{number}",
            tuple(Place(gpu, memory, time) for gpu in where),
            sessions=dice.choice([1, 1, 2, 5]),
            since=NOW - dice.choice([1.0, 599.0]) if dice.random() < special else NOW - 601.0,
            stays="it is not movable" if dice.random() < special else "",
        )
        more = replace(made, tenants=(*made.tenants, tenant))
        if more.fits():
            made = more
    return made


def check_step(pool: Pool, step: Step) -> None:
    """Asserts each rule about one move from this state."""
    check_room(pool, step)
    assert len(pool.after(step).in_use()) <= len(pool.in_use())


def check_room(pool: Pool, step: Step) -> None:
    tenant, source = pool.tenant(step.uid), pool.here(step.uid, step.source)
    assert tenant.places, "it has its share"
    assert tenant.stays == ""
    assert source, "it is there"
    assert len(step.to) == len(set(step.to)) == len(source)
    for old, gpu in zip(source, step.to, strict=True):
        target = pool.gpus[gpu]
        assert target.appliance == step.target
        assert target.kind == pool.gpus[old.gpu].kind
        assert not target.closed
        assert not pool.gpus[old.gpu].closed
        assert target.appliance in pool.busy(), "an unused appliance stays so"
    assert step.target not in {pool.gpus[each.gpu].appliance for each in tenant.places}
    assert pool.during(step).fits(), "both are booked while it moves"
    assert pool.after(step).fits()


def single_moves(pool: Pool) -> Iterator[Step]:
    """Every move of one claim that the rules allow."""
    for tenant in pool.tenants:
        if tenant.stays or tenant.since > NOW - QUIET:
            continue
        appliances = {pool.gpus[each.gpu].appliance for each in tenant.places}
        for source in sorted(appliances):
            places = pool.here(tenant.uid, source)
            for target in sorted(pool.busy() - appliances):
                theirs = [index for index, gpu in enumerate(pool.gpus) if gpu.appliance == target]
                for to in _assignments(pool, places, theirs):
                    step = Step(tenant.uid, source, target, to)
                    if pool.during(step).fits():
                        yield step


def _assignments(pool: Pool, places: Sequence[Place], theirs: list[int]) -> Iterator[tuple[int, ...]]:
    if not places:
        yield ()
        return
    for gpu in theirs:
        if pool.gpus[gpu].kind == pool.gpus[places[0].gpu].kind:
            for rest in _assignments(pool, places[1:], [each for each in theirs if each != gpu]):
                yield (gpu, *rest)


def best(start: Pool, most: int) -> tuple[int, int]:
    """The fewest appliances, and then the fewest GPUs, that any `most` moves in any order leave in use.

    Only what leaves fewer GPUs in use than before counts.
    """
    seen: dict[tuple[tuple[int, ...], ...], int] = {}
    found = start.score()

    def walk(now: Pool, left: int) -> None:
        nonlocal found
        if len(now.in_use()) < len(start.in_use()):
            found = min(found, now.score())
        key = tuple(tuple(place.gpu for place in each.places) for each in now.tenants)
        if seen.get(key, -1) >= left:
            return
        seen[key] = left
        if left:
            for step in single_moves(now):
                walk(now.after(step), left - 1)

    walk(start, most)
    return found


def run(start: Pool, most: int, fails: Callable[[int], bool]) -> tuple[Pool, int]:
    """Carries plans out as the operator does: one move at a time, planned again after each failure.

    `fails` says which attempts fail, by their number. Returns the pool at the end and the number of attempts.
    """
    now, tried = start, 0
    while True:
        planned = now.planned(most - tried)
        failed = False
        for step in planned.steps:
            check_step(now, step)
            tried += 1
            if fails(tried):
                now = now.with_tenant(replace(now.tenant(step.uid), stays="its move failed"))
                failed = True
                break
            now = now.after(step)
        if not failed:
            return now, tried
